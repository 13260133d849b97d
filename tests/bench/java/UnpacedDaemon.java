package software.amazon.kinesis.multilang.config;

import software.amazon.kinesis.coordinator.Scheduler;
import software.amazon.kinesis.multilang.MultiLangDaemonConfig;
import software.amazon.kinesis.retrieval.polling.PollingConfig;

/**
 * The daemon without its pause between two reads of a shard: the library lets a program set that, the daemon does not.
 * It stands in the package whose configuration it changes. Arguments: --properties-file FILE.
 */
public final class UnpacedDaemon {
    public static void main(String[] args) throws Exception {
        MultiLangDaemonConfig config = new MultiLangDaemonConfig(args[1]);
        MultiLangDaemonConfiguration.ResolvedConfiguration resolved =
                config.getMultiLangDaemonConfiguration().resolvedConfiguration(config.getRecordProcessorFactory());
        PollingConfig polling = (PollingConfig) resolved.getRetrievalConfig().retrievalSpecificConfig();
        polling.sleepTimeController(lastCall -> 0L);
        Scheduler scheduler = resolved.build();
        config.getExecutorService().submit(scheduler).get();
    }
}
