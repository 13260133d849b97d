// Writes every record to stderr, where the host logs it, and checkpoints each batch. Java 17, nothing but the JDK.
// The JDK has no JSON parser; the host writes compact objects, of which this needs three fields.
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

public class Processor {
    static final Pattern FIELD = Pattern.compile(
            "\"([^\"\\\\]*+(?:\\\\.[^\"\\\\]*+)*+)\"\\s*+(:?)\\s*+(null\\b)?");
    static final BufferedReader IN = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    /** Calls `each` with every field whose value is a string (null: JSON's null), in their order. */
    static void fields(String json, java.util.function.BiConsumer<String, String> each) {
        String name = null;
        for (Matcher found = FIELD.matcher(json); found.find(); ) {
            if (!found.group(2).isEmpty()) {
                name = found.group(1);
                if (found.group(3) != null) each.accept(name, null);
            } else if (name != null) {
                each.accept(name, found.group(1));
                name = null;
            }
        }
    }

    static void checkpoint() throws IOException {
        OUT.println("{\"action\":\"checkpoint\",\"sequenceNumber\":null,\"subSequenceNumber\":null}");
        fields(String.valueOf(IN.readLine()), (name, value) -> {
            // Nothing is lost by a refusal: the next checkpoint makes up for it.
            if (name.equals("error") && value != null) System.err.println("WARN checkpoint refused: " + value);
        });
    }

    public static void main(String[] args) throws IOException {
        for (String line; (line = IN.readLine()) != null; ) {
            String[] action = {null};
            fields(line, (name, value) -> {
                if (name.equals("action") && !"record".equals(value) && action[0] == null) action[0] = value;
                if (name.equals("data"))
                    System.err.println(new String(Base64.getDecoder().decode(value), StandardCharsets.UTF_8));
            });
            switch (action[0]) {
                case "processRecords", "shardEnded", "shutdownRequested" -> checkpoint();
                default -> { }
            }
            OUT.println("{\"action\":\"status\",\"responseFor\":\"" + action[0] + "\"}");
        }
    }
}
