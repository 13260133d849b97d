import java.net.URI;
import java.time.Duration;
import java.util.List;
import java.util.Set;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.dynamodb.DynamoDbAsyncClient;
import software.amazon.kinesis.common.DdbTableConfig;
import software.amazon.kinesis.leases.Lease;
import software.amazon.kinesis.leases.MultiStreamLease;
import software.amazon.kinesis.leases.dynamodb.DynamoDBLeaseRefresher;
import software.amazon.kinesis.leases.dynamodb.DynamoDBMultiStreamLeaseSerializer;
import software.amazon.kinesis.leases.dynamodb.TableCreatorCallback;
import software.amazon.kinesis.retrieval.kpl.ExtendedSequenceNumber;

/**
 * Java KCL's own lease refresher for many streams, since its daemon can read one only. Commands on the rows of a table,
 * each a line of output: "create STREAM SHARD PARENT", "list", "renew KEY", "checkpoint KEY NUMBER SUB", "evict KEY".
 */
public final class MultiStreamLeases {
    public static void main(String[] args) throws Exception {
        try (DynamoDbAsyncClient client = DynamoDbAsyncClient.builder()
                .endpointOverride(URI.create(args[0]))
                .region(Region.US_EAST_1)
                .credentialsProvider(StaticCredentialsProvider.create(AwsBasicCredentials.create("local", "local")))
                .build()) {
            DynamoDBLeaseRefresher leases = new DynamoDBLeaseRefresher(
                    args[1], client, new DynamoDBMultiStreamLeaseSerializer(), true,
                    TableCreatorCallback.NOOP_TABLE_CREATOR_CALLBACK, Duration.ofSeconds(10),
                    new DdbTableConfig(), false, false, List.of());
            for (String command : args[2].split(";")) {
                System.out.println(run(leases, command.trim().split(" ")));
            }
        }
    }

    private static String run(DynamoDBLeaseRefresher leases, String[] words) throws Exception {
        switch (words[0]) {
            case "create":
                MultiStreamLease lease = new MultiStreamLease();
                lease.leaseKey(MultiStreamLease.getLeaseKey(words[1], words[2]));
                lease.streamIdentifier(words[1]);
                lease.shardId(words[2]);
                lease.parentShardIds(Set.of(words[3]));
                lease.checkpoint(ExtendedSequenceNumber.TRIM_HORIZON);
                lease.ownerSwitchesSinceCheckpoint(0L);
                return "created " + leases.createLeaseIfNotExists(lease);
            case "list":
                StringBuilder all = new StringBuilder("leases");
                leases.listLeases().stream().map(MultiStreamLeases::line).sorted().forEach(all::append);
                return all.toString();
            case "renew":
                return "renewed " + leases.renewLease(leases.getLease(words[1]));
            case "checkpoint":
                Lease held = leases.getLease(words[1]);
                held.checkpoint(new ExtendedSequenceNumber(words[2], Long.parseLong(words[3])));
                return "checkpointed " + leases.updateLease(held);
            case "evict":
                return "evicted " + leases.evictLease(leases.getLease(words[1]));
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static String line(Lease lease) {
        MultiStreamLease of = (MultiStreamLease) lease;
        return " | " + String.join(" ", of.leaseKey(), of.streamIdentifier(), of.shardId(),
                String.valueOf(of.leaseOwner()), String.valueOf(of.leaseCounter()),
                of.checkpoint().sequenceNumber(), String.valueOf(of.checkpoint().subSequenceNumber()),
                String.join(",", of.parentShardIds()));
    }
}
