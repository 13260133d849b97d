// Writes every record to stderr, where the host logs it, and checkpoints each batch. On Amazon's npm package aws-kcl.
'use strict';
const kcl = require('aws-kcl');

const checkpoint = ({ checkpointer }, done) =>
  checkpointer.checkpoint((error) => {
    // Nothing is lost by a refusal: the next checkpoint makes up for it.
    if (error) console.error(`WARN checkpoint refused: ${error}`);
    done();
  });

kcl({
  initialize: (input, done) => done(),
  processRecords(input, done) {
    for (const record of input.records) {
      console.error(record.partitionKey, Buffer.from(record.data, 'base64').toString());
    }
    checkpoint(input, done);
  },
  leaseLost: (input, done) => done(),
  shardEnded: checkpoint,
  shutdownRequested: checkpoint,
}).run();
