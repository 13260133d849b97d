package main

import (
	"bytes"
	"fmt"
	"sync"
)

// A sequence number is 56 digits: those of the shard, of the answer within it, and of the record within the answer. All
// but the answer's stand in the bytes that were made once.
const (
	sequenceFormat = "49660000000000000000000000000000%06d%012d%06d"
	batchAt        = 38
	batchDigits    = 12
	iteratorFormat = "AAAA%06d/%012d/"
	iteratorBatch  = 11
	iteratorLength = 224
	arrivalMs      = 1_795_219_524_867
	behindMs       = 60_000 // never caught up
)

func iteratorOf(shard int, batch uint64) string {
	start := fmt.Sprintf(iteratorFormat, shard, batch)
	return start + string(bytes.Repeat([]byte{'A'}, iteratorLength-len(start)))
}

func parseIterator(iterator string) (shard int, batch uint64, err error) {
	_, err = fmt.Sscanf(iterator, iteratorFormat, &shard, &batch)
	return shard, batch, err
}

// answer is one body of GetRecords; written to one connection at a time.
type answer struct {
	body    []byte
	batches []int // where the digits of the batch begin, one place for each record
	next    int   // the same in the next iterator
}

func newAnswer(shard, records int, payload []byte, cbor bool) *answer {
	made := &answer{}
	if cbor {
		made.writeCbor(shard, records, payload)
	} else {
		made.writeJson(shard, records, payload)
	}
	return made
}

func (a *answer) writeCbor(shard, records int, payload []byte) {
	body := appendHead(make([]byte, 0, records*(len(payload)+160)+400), 5, 3)
	body = appendHead(appendText(body, "MillisBehindLatest"), 0, behindMs)
	body = appendText(appendText(body, "NextShardIterator"), iteratorOf(shard, 0))
	a.next = len(body) - iteratorLength + iteratorBatch
	body = appendHead(appendText(body, "Records"), 4, uint64(records))
	for record := 0; record < records; record++ {
		body = appendHead(body, 5, 4)
		body = appendTime(appendText(body, "ApproximateArrivalTimestamp"), arrivalMs)
		body = appendBytes(appendText(body, "Data"), payload)
		body = appendText(appendText(body, "PartitionKey"), fmt.Sprintf("key-%06d", record))
		number := fmt.Sprintf(sequenceFormat, shard, 0, record)
		body = appendText(appendText(body, "SequenceNumber"), number)
		a.batches = append(a.batches, len(body)-len(number)+batchAt)
	}
	a.body = body
}

func (a *answer) writeJson(shard, records int, payload []byte) {
	var body bytes.Buffer
	data := base64Text(payload)
	body.Grow(records*(len(data)+200) + 400)
	fmt.Fprintf(&body, `{"MillisBehindLatest":%d,"NextShardIterator":"`, behindMs)
	a.next = body.Len() + iteratorBatch
	fmt.Fprintf(&body, `%s","Records":[`, iteratorOf(shard, 0))
	for record := 0; record < records; record++ {
		if record > 0 {
			body.WriteByte(',')
		}
		fmt.Fprintf(&body, `{"ApproximateArrivalTimestamp":%d.%03d,"Data":"%s","PartitionKey":"key-%06d","SequenceNumber":"`,
			arrivalMs/1000, arrivalMs%1000, data, record)
		a.batches = append(a.batches, body.Len()+batchAt)
		fmt.Fprintf(&body, sequenceFormat, shard, 0, record)
		body.WriteString(`"}`)
	}
	body.WriteString("]}")
	a.body = body.Bytes()
}

func (a *answer) number(batch uint64) {
	digits := fmt.Sprintf("%0*d", batchDigits, batch)
	for _, at := range a.batches {
		copy(a.body[at:], digits)
	}
	copy(a.body[a.next:], fmt.Sprintf("%0*d", batchDigits, batch+1))
}

// answers keeps those that are not being written.
type answers struct {
	payloads [][]byte // by shard, or one for all
	mutex    sync.Mutex
	free     map[kind][]*answer
}

type kind struct {
	shard, records int
	cbor           bool
}

func (s *answers) take(k kind) *answer {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if free := s.free[k]; len(free) > 0 {
		s.free[k] = free[:len(free)-1]
		return free[len(free)-1]
	}
	return newAnswer(k.shard, k.records, s.payload(k.shard), k.cbor)
}

func (s *answers) giveBack(k kind, a *answer) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.free[k] = append(s.free[k], a)
}

func (s *answers) payload(shard int) []byte { return s.payloads[shard%len(s.payloads)] }
