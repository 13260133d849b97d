package software.amazon.kinesis.coordinator.assignment;

import ch.qos.logback.classic.Level;
import ch.qos.logback.classic.Logger;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.slf4j.LoggerFactory;
import software.amazon.kinesis.leases.Lease;
import software.amazon.kinesis.leases.LeaseAssignmentStrategy;
import software.amazon.kinesis.leases.LeaseManagementConfig;
import software.amazon.kinesis.metrics.MetricsScope;
import software.amazon.kinesis.metrics.NullMetricsScope;
import software.amazon.kinesis.worker.metricstats.WorkerMetricStats;

/**
 * Has the library decide on a fleet given in a line of JSON, as often as it says, and answers with a line: the seconds of
 * each decision, and the new owners of the last one. Reading the tables and writing the leases is no part of it; neither
 * is logging, which is off. It stands in the package whose classes it calls.
 */
public final class PlanHarness {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long LEASE_DURATION_MS = 10_000;

    public static void main(String[] args) throws Exception {
        ((Logger) LoggerFactory.getLogger(org.slf4j.Logger.ROOT_LOGGER_NAME)).setLevel(Level.OFF);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JsonNode request = JSON.readTree(line);
            List<Double> seconds = new ArrayList<>();
            Map<String, String> assigned = null;
            for (int n = 0; n < request.get("repeat").asInt(); n++) {
                PlanHarness fleet = new PlanHarness(request);
                long began = System.nanoTime();
                Map<Lease, String> decided = fleet.decide();
                seconds.add((System.nanoTime() - began) / 1e9);
                assigned = decided.entrySet().stream()
                        .collect(Collectors.toMap(e -> e.getKey().leaseKey(), Map.Entry::getValue));
            }
            System.out.println(JSON.writeValueAsString(Map.of("seconds", seconds, "assigned", assigned)));
        }
        System.exit(0);
    }

    private final List<Lease> leases = new ArrayList<>();
    private final List<WorkerMetricStats> workers = new ArrayList<>();
    private final long nowNanos;

    private PlanHarness(JsonNode request) {
        nowNanos = request.get("now_nanos").asLong();
        for (JsonNode given : request.get("leases")) {
            Lease lease = new Lease();
            lease.leaseKey(given.get("key").asText());
            lease.leaseCounter(1L);
            lease.lastCounterIncrementNanos(given.get("incremented_nanos").asLong());
            if (!given.get("owner").isNull()) lease.leaseOwner(given.get("owner").asText());
            if (!given.get("kbps").isNull()) lease.throughputKBps(given.get("kbps").asDouble());
            leases.add(lease);
        }
        for (JsonNode given : request.get("workers")) {
            List<Double> cpu = new ArrayList<>();
            given.get("cpu").forEach(value -> cpu.add(value.asDouble()));
            Map<String, List<Double>> stats = new HashMap<>();
            Map<String, List<Long>> ranges = new HashMap<>();
            if (!cpu.isEmpty()) {
                stats.put("C", cpu);
                ranges.put("C", List.of(100L));
            }
            workers.add(WorkerMetricStats.builder()
                    .workerId(given.get("id").asText())
                    .lastUpdateTime(System.currentTimeMillis() / 1000)
                    .metricStats(stats)
                    .operatingRange(ranges)
                    .build());
        }
    }

    private Map<Lease, String> decide() {
        LeaseManagementConfig.WorkerUtilizationAwareAssignmentConfig config =
                new LeaseManagementConfig.WorkerUtilizationAwareAssignmentConfig();
        LeaseAssignmentManager manager = new LeaseAssignmentManager(
                null, null, config, "leader", LEASE_DURATION_MS, null, null, () -> nowNanos, Integer.MAX_VALUE,
                LeaseManagementConfig.GracefulLeaseHandoffConfig.builder().build(),
                LeaseAssignmentStrategy.WORKER_UTILIZATION_AWARE, 2 * LEASE_DURATION_MS, null,
                new Snapshot());
        LeaseAssignmentManager.InMemoryStorageView view = manager.new InMemoryStorageView();
        view.loadInMemoryStorageView(new NullMetricsScope());
        List<Lease> free = view.getLeaseList().stream()
                .filter(lease -> lease.isExpired(TimeUnit.MILLISECONDS.toNanos(LEASE_DURATION_MS), nowNanos)
                        || Objects.isNull(lease.actualOwner()))
                .map(lease -> lease.isExpiredOrUnassigned(true))
                .collect(Collectors.toList());
        LeaseAssignmentDecider decider = new VarianceBasedLeaseAssignmentDecider(
                view, config.dampeningPercentage(), config.reBalanceThresholdPercentage(),
                config.allowThroughputOvershoot());
        decider.assignExpiredOrUnassignedLeases(free);
        decider.balanceWorkerVariance();
        return view.getLeaseToNewAssignedWorkerMap();
    }

    private final class Snapshot implements LAMDataManager {
        @Override
        public LAMDataSnapshot loadData(MetricsScope scope) {
            return LAMDataSnapshot.builder().leases(leases).workerMetricStats(workers).build();
        }

        @Override
        public void shutdown() {}
    }
}
