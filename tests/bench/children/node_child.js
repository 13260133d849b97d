// A record processor on the npm package aws-kcl that only takes what the library gives it. Notes as in kclpy_child.py.
'use strict';
const fs = require('fs');
const kcl = require('aws-kcl');

const folder = process.env.KCL_BENCH_NOTES;
const notes = folder ? fs.openSync(`${folder}/${process.pid}`, 'w') : null;

function note(records) {
  const last = records.at(-1);
  const position = last ? `${last.sequenceNumber} ${last.subSequenceNumber}` : '- 0';
  const now = BigInt(Math.round((performance.timeOrigin + performance.now()) * 1e6));
  fs.writeSync(notes, `${position} 0 ${records.length} ${now}\n`);
}

kcl({
  initialize: (input, done) => done(),
  processRecords(input, done) {
    if (notes !== null) note(input.records);
    done();
  },
  leaseLost: (input, done) => done(),
  shardEnded: (input, done) => input.checkpointer.checkpoint(() => done()),
  shutdownRequested: (input, done) => done(),
}).run();
