// A processor on the npm package aws-kcl, used as its README shows. Checkpoints each batch; says what it sees on stderr.
'use strict';
const kcl = require('aws-kcl');

function checkpoint(input, sequenceNumber, done) {
  input.checkpointer.checkpoint(sequenceNumber, (error, at) => {
    console.error('checkpoint', at, error);
    done();
  });
}

kcl({
  initialize(input, done) {
    console.error('initialize', input.shardId);
    done();
  },
  processRecords(input, done) {
    for (const record of input.records) console.error('record', Buffer.from(record.data, 'base64').toString());
    const last = input.records.at(-1);
    last ? checkpoint(input, last.sequenceNumber, done) : done();
  },
  leaseLost(input, done) {
    console.error('lease lost');
    done();
  },
  shardEnded(input, done) {
    input.checkpointer.checkpoint(() => done());
  },
  shutdownRequested(input, done) {
    input.checkpointer.checkpoint(() => done());
  },
}).run();
