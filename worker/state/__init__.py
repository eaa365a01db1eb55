"""What is known of a project and its threads, folded from events: pure rules, whatever the store."""
