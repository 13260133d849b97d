// Writes every record to stderr, where the host logs it, and checkpoints each batch. Plain Node, no package.
'use strict';
const lines = require('node:readline').createInterface({ input: process.stdin })[Symbol.asyncIterator]();

const send = (message) => process.stdout.write(JSON.stringify(message) + '\n');
const receive = async () => {
  const { value, done } = await lines.next();
  return done ? null : JSON.parse(value);
};

async function checkpoint(sequenceNumber = null, subSequenceNumber = null) {
  send({ action: 'checkpoint', sequenceNumber, subSequenceNumber });
  const answer = await receive();
  // Nothing is lost by a refusal: the next checkpoint makes up for it.
  if (answer?.error !== null) console.error(`WARN checkpoint refused: ${answer?.error}`);
}

const actions = {
  async processRecords({ records }) {
    for (const record of records) console.error(record.partitionKey, Buffer.from(record.data, 'base64').toString());
    await checkpoint();
  },
  shardEnded: () => checkpoint(),
  shutdownRequested: () => checkpoint(),
};

(async () => {
  for (let message; (message = await receive()); ) {
    await actions[message.action]?.(message);
    send({ action: 'status', responseFor: message.action });
  }
})();
