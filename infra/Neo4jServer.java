import java.nio.file.Path;
import java.util.Map;
import org.neo4j.dbms.api.DatabaseManagementServiceBuilder;

/**
 * Neo4j as a process of its own: no published jar has the server's main class.
 *
 * <p>Arguments: home, configuration file, and optionally "once" to stop as soon as it is ready.
 */
public final class Neo4jServer {
    public static void main(String[] args) {
        var service = new DatabaseManagementServiceBuilder(Path.of(args[0]))
            .loadPropertiesFromFile(Path.of(args[1]))
            .build();
        Runtime.getRuntime().addShutdownHook(new Thread(service::shutdown));
        service.database("system").executeTransactionally(
            "ALTER USER neo4j SET PASSWORD $password CHANGE NOT REQUIRED",
            Map.of("password", System.getenv("NEO4J_PASSWORD")));
        // The first query loads the query planner, which takes seconds: better here than in a test.
        service.database("neo4j").executeTransactionally("MATCH (n) RETURN count(n)");
        if (args.length > 2 && args[2].equals("once")) {
            System.exit(0);
        }
    }
}
