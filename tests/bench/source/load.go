package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// load reads every shard as fast as it can and prints answers and bytes of bodies per second: a lower bound of what the
// source can do, since this client needs a processor too.
func load(arguments []string) error {
	flags := flag.NewFlagSet("load", flag.ExitOnError)
	folder := flags.String("folder", ".", "where certificate.pem is")
	url := flags.String("url", "", "of the source")
	wire := flags.String("wire", "h2-cbor", "h2-cbor or h1-json")
	shards := flags.Int("shards", 1, "read at the same time")
	limit := flags.Int("limit", 1000, "records of an answer")
	seconds := flags.Float64("seconds", 2, "how long")
	flags.Parse(arguments)
	trusted, err := os.ReadFile(filepath.Join(*folder, certificateOf))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusted)
	cbor := *wire == "h2-cbor"
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: cbor, MaxIdleConnsPerHost: *shards,
		ReadBufferSize: 64 << 10, DisableCompression: true,
	}
	client := &http.Client{Transport: transport}
	until := time.Now().Add(time.Duration(*seconds * float64(time.Second)))
	began := time.Now()
	var group sync.WaitGroup
	var mutex sync.Mutex
	var answers, size int64
	var failure error
	for shard := 0; shard < *shards; shard++ {
		group.Add(1)
		go func() {
			defer group.Done()
			a, s, err := readShard(client, *url, cbor, shard, *limit, until)
			mutex.Lock()
			defer mutex.Unlock()
			answers, size = answers+a, size+s
			if err != nil {
				failure = err
			}
		}()
	}
	group.Wait()
	took := time.Since(began).Seconds()
	fmt.Printf("%.1f %.1f\n", float64(answers)/took, float64(size)/took/1e6)
	return failure
}

func readShard(client *http.Client, url string, cbor bool, shard, limit int, until time.Time) (answers, size int64, err error) {
	iterator := iteratorOf(shard, 0)
	buffer := make([]byte, 1<<20)
	for time.Now().Before(until) {
		body := encode(cbor, map[string]any{"ShardIterator": iterator, "Limit": limit})
		request, err := http.NewRequest("POST", url, bytes.NewReader(body))
		if err != nil {
			return answers, size, err
		}
		request.Header.Set("X-Amz-Target", "Kinesis_20131202.GetRecords")
		request.Header.Set("Content-Type", map[bool]string{true: cborType, false: jsonType}[cbor])
		response, err := client.Do(request)
		if err != nil {
			return answers, size, err
		}
		if response.StatusCode != 200 || (response.ProtoMajor == 2) != cbor {
			return answers, size, fmt.Errorf("%s %s", response.Proto, response.Status)
		}
		batch := uint64(answers)
		for first := true; ; first = false {
			count, err := response.Body.Read(buffer)
			if first && !bytes.Contains(buffer[:count], fmt.Appendf(nil, iteratorFormat, shard, batch+1)) {
				return answers, size, fmt.Errorf("the answer does not go on: %.80q", buffer[:count])
			}
			size += int64(count)
			if err == io.EOF {
				break
			} else if err != nil {
				return answers, size, err
			}
		}
		response.Body.Close()
		answers++
		iterator = iteratorOf(shard, uint64(answers))
	}
	return answers, size, nil
}
