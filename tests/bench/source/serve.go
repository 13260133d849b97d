package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	largestAnswer  = 10 << 20 // Kinesis: 10 MiB and 10,000 records
	largestLimit   = 10_000
	certificateOf  = "certificate.pem"
	streamArn      = "arn:aws:kinesis:us-east-1:000000000000:stream/"
	certificateFor = 24 * time.Hour
)

type source struct {
	shards   int
	idle     bool
	answers  answers
	notes    *notes
	requests requests
}

func serve(arguments []string) error {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	folder := flags.String("folder", ".", "where certificate.pem and the notes go")
	shards := flags.Int("shards", 1, "of the stream, whatever its name")
	idle := flags.Bool("idle", false, "GetRecords finds nothing, and is at the tip")
	port := flags.Int("port", 0, "0: any free one, which is printed")
	notesFile := flags.String("notes", "", "a line for each answer of GetRecords: shard, answer, records, began, ended")
	flags.Parse(arguments)
	made := &source{shards: *shards, idle: *idle, answers: answers{free: map[kind][]*answer{}}}
	made.requests.by = map[string]int{}
	for _, file := range flags.Args() {
		payload, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		made.answers.payloads = append(made.answers.payloads, payload)
	}
	if len(made.answers.payloads) == 0 && !made.idle {
		return errors.New("no payload")
	}
	if *notesFile != "" {
		file, err := os.Create(*notesFile)
		if err != nil {
			return err
		}
		made.notes = &notes{file: file}
	}
	certificate, err := newCertificate(filepath.Join(*folder, certificateOf))
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	if err != nil {
		return err
	}
	fmt.Printf("https://%s\n", listener.Addr())
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler:   made,
		Protocols: &protocols,
		ErrorLog:  log.New(io.Discard, "", 0), // clients that go away in the middle of an answer
	}
	return server.Serve(tlsListener{listener, &tls.Config{
		Certificates: []tls.Certificate{certificate},
		NextProtos:   []string{"h2", "http/1.1"},
		// Without the small records of a connection's first megabyte.
		DynamicRecordSizingDisabled: true,
	}})
}

// tlsListener hides TLS from net/http, which takes HTTP/2 without ALPN on connections in the clear only: the Java SDK
// begins with HTTP/2 and negotiates nothing.
type tlsListener struct {
	net.Listener
	config *tls.Config
}

type hidden struct{ net.Conn }

func (l tlsListener) Accept() (net.Conn, error) {
	connection, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return hidden{tls.Server(connection, l.config)}, nil
}

func (s *source) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if request.Method == "GET" {
		write(w, false, 200, s.requests.counted())
		return
	}
	contentType := request.Header.Get("Content-Type")
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return
	}
	members, err := decodeRequest(contentType, body)
	_, operation, _ := strings.Cut(request.Header.Get("X-Amz-Target"), ".")
	s.requests.add(operation)
	if err == nil && operation == "GetRecords" {
		err = s.getRecords(w, isCbor(contentType), members)
	} else if err == nil {
		var found any
		if found, err = s.answer(operation, members); err == nil {
			write(w, isCbor(contentType), 200, encode(isCbor(contentType), found))
		}
	}
	if err != nil {
		said := map[string]any{"__type": "InvalidArgumentException", "message": err.Error()}
		write(w, isCbor(contentType), 400, encode(isCbor(contentType), said))
	}
}

func write(w http.ResponseWriter, cbor bool, status int, body []byte) {
	contentType := jsonType
	if cbor {
		contentType = cborType
	}
	w.Header()["Content-Type"] = []string{contentType}
	w.Header()["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.Header()["X-Amzn-Requestid"] = []string{"00000000-0000-0000-0000-000000000000"}
	w.WriteHeader(status)
	w.Write(body)
}

func (s *source) getRecords(w http.ResponseWriter, cbor bool, members map[string]any) error {
	shard, batch, err := parseIterator(text(members, "ShardIterator"))
	if err != nil || shard < 0 || shard >= s.shards {
		return errors.New("no such iterator")
	}
	if s.idle {
		found := map[string]any{
			"MillisBehindLatest": 0, "NextShardIterator": iteratorOf(shard, batch+1), "Records": []any{},
		}
		write(w, cbor, 200, encode(cbor, found))
		return nil
	}
	k := kind{shard, s.records(members), cbor}
	prepared := s.answers.take(k)
	prepared.number(batch)
	began := time.Now().UnixNano()
	write(w, cbor, 200, prepared.body)
	s.notes.add(shard, batch, k.records, began, time.Now().UnixNano())
	s.answers.giveBack(k, prepared)
	return nil
}

func (s *source) records(members map[string]any) int {
	limit, ok := members["Limit"].(int64)
	if !ok || limit <= 0 || limit > largestLimit {
		limit = largestLimit
	}
	return max(1, min(int(limit), largestAnswer/len(s.answers.payload(0))))
}

func (s *source) answer(operation string, members map[string]any) (any, error) {
	switch operation {
	case "GetShardIterator":
		var shard int
		if _, err := fmt.Sscanf(text(members, "ShardId"), "shardId-%d", &shard); err != nil {
			return nil, err
		}
		var batch uint64
		if after := text(members, "StartingSequenceNumber"); len(after) == 56 {
			before, err := strconv.ParseUint(after[batchAt:batchAt+batchDigits], 10, 64)
			if err != nil {
				return nil, err
			}
			batch = before + 1
		}
		return map[string]any{"ShardIterator": iteratorOf(shard, batch)}, nil
	case "ListShards":
		return map[string]any{"Shards": s.listing()}, nil
	case "DescribeStreamSummary":
		name := text(members, "StreamName")
		return map[string]any{"StreamDescriptionSummary": map[string]any{
			"StreamName": name, "StreamARN": streamArn + name, "StreamStatus": "ACTIVE", "RetentionPeriodHours": 24,
			"StreamCreationTimestamp": timestamp(arrivalMs), "EnhancedMonitoring": []any{}, "OpenShardCount": s.shards,
		}}, nil
	}
	return nil, fmt.Errorf("%s is not known here", operation)
}

func (s *source) listing() []any {
	whole := new(big.Int).Lsh(big.NewInt(1), 128)
	edge := func(n int) *big.Int {
		product := new(big.Int).Mul(whole, big.NewInt(int64(n)))
		return product.Div(product, big.NewInt(int64(s.shards)))
	}
	listing := []any{}
	for n := 0; n < s.shards; n++ {
		last := new(big.Int).Sub(edge(n+1), big.NewInt(1))
		listing = append(listing, map[string]any{
			"ShardId":             fmt.Sprintf("shardId-%012d", n),
			"HashKeyRange":        map[string]any{"StartingHashKey": edge(n).String(), "EndingHashKey": last.String()},
			"SequenceNumberRange": map[string]any{"StartingSequenceNumber": fmt.Sprintf(sequenceFormat, n, 0, 0)},
		})
	}
	return listing
}

// requests of the service so far, by operation; a GET answers with them.
type requests struct {
	mutex sync.Mutex
	by    map[string]int
}

func (r *requests) add(operation string) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.by[operation]++
}

func (r *requests) counted() []byte {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return encode(false, r.by)
}

// notes has a line for each answer: shard, answer, records, nanoseconds since the epoch when its writing began and ended.
type notes struct {
	mutex sync.Mutex
	file  *os.File
}

func (n *notes) add(shard int, batch uint64, records int, beganNs, endedNs int64) {
	if n == nil {
		return
	}
	n.mutex.Lock()
	defer n.mutex.Unlock()
	fmt.Fprintf(n.file, "%d %d %d %d %d\n", shard, batch, records, beganNs, endedNs)
}

func newCertificate(file string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "bench source"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(certificateFor),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	readable := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}, os.WriteFile(file, readable, 0o644)
}
