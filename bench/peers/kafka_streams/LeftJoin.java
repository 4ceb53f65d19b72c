import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;

/**
 * Joins impressions with their clicks as Kafka Streams' documentation has it, until it is ended.
 *
 * <p>Takes Kafka's address, the topics of impressions, of clicks and of what is joined, the two distances in milliseconds
 * that a click may lie behind its impression and before it, and the folder for its state. Both topics have the impression's
 * id as their key and as many partitions, so nothing is written a second time to be joined, and no value is parsed: a
 * joined record is both texts in one.
 */
public final class LeftJoin {
  public static void main(String[] arguments) {
    Properties settings = new Properties();
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[3]);
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[6]);
    settings.put("auto.offset.reset", "earliest");
    Duration within = Duration.ofMillis(Long.parseLong(arguments[4]));
    Duration early = Duration.ofMillis(Long.parseLong(arguments[5]));
    Serde<String> keys = Serdes.String();
    Serde<byte[]> values = Serdes.ByteArray();
    StreamsBuilder builder = new StreamsBuilder();
    builder.stream(arguments[1], Consumed.with(keys, values))
        .leftJoin(
            builder.stream(arguments[2], Consumed.with(keys, values)),
            LeftJoin::both,
            JoinWindows.ofTimeDifferenceAndGrace(within, early).before(early),
            StreamJoined.with(keys, values, values))
        .to(arguments[3], Produced.with(keys, values));
    KafkaStreams streams = new KafkaStreams(builder.build(), settings);
    Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
    streams.start();
  }

  private static byte[] both(byte[] impression, byte[] click) {
    byte[] other = click == null ? "null".getBytes(StandardCharsets.UTF_8) : click;
    byte[] joined = new byte[impression.length + 1 + other.length];
    System.arraycopy(impression, 0, joined, 0, impression.length);
    joined[impression.length] = ' ';
    System.arraycopy(other, 0, joined, impression.length + 1, other.length);
    return joined;
  }

  private LeftJoin() {}
}
