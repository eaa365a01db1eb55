"""What follows an agent's answer: it is judged by what is stored, and the next bundle is made.

Read `judging` first. It knows no broker; `worker.kafka.response_handler` publishes what it comes to.
"""
