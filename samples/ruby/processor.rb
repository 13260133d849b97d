# Writes every record to stderr, where the host logs it, and checkpoints each batch.
# On Amazon's library: gem install aws-kclrb
require 'aws/kclrb'
require 'base64'

class Printer < Aws::KCLrb::V2::RecordProcessorBase
  def init_processor(initialize_input); end

  def process_records(process_records_input)
    process_records_input.records.each do |record|
      warn "#{record['partitionKey']} #{Base64.decode64(record['data'])}"
    end
    checkpoint(process_records_input)
  end

  def lease_lost(lease_lost_input); end

  def shard_ended(shard_ended_input)
    checkpoint(shard_ended_input)
  end

  def shutdown_requested(shutdown_requested_input)
    checkpoint(shutdown_requested_input)
  end

  private

  # Nothing is lost by a refusal: the next checkpoint makes up for it.
  def checkpoint(input)
    input.checkpointer.checkpoint
  rescue Aws::KCLrb::CheckpointError => e
    warn "WARN checkpoint refused: #{e}"
  end
end

Aws::KCLrb::KCLProcess.new(Printer.new).run
