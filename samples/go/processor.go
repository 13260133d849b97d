// Writes every record to stderr, where the host logs it, and checkpoints each batch. Standard library only.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
)

type message struct {
	Action  string
	Error   *string
	Records []struct {
		Data         []byte // encoding/json takes base64 for it
		PartitionKey string
	}
}

var in = bufio.NewReaderSize(os.Stdin, 1<<20)

func send(fields map[string]any) {
	line, _ := json.Marshal(fields)
	os.Stdout.Write(append(line, '\n'))
}

func receive() (m message, ok bool) {
	line, err := in.ReadBytes('\n')
	if err == io.EOF {
		return m, false
	}
	if err == nil {
		err = json.Unmarshal(line, &m)
	}
	if err != nil {
		log.Fatal(err)
	}
	return m, true
}

func checkpoint() {
	send(map[string]any{"action": "checkpoint", "sequenceNumber": nil, "subSequenceNumber": nil})
	if answer, _ := receive(); answer.Error != nil {
		// Nothing is lost by a refusal: the next checkpoint makes up for it.
		fmt.Fprintln(os.Stderr, "WARN checkpoint refused:", *answer.Error)
	}
}

func main() {
	for {
		m, ok := receive()
		if !ok {
			return
		}
		switch m.Action {
		case "processRecords":
			for _, record := range m.Records {
				fmt.Fprintf(os.Stderr, "%s %s\n", record.PartitionKey, record.Data)
			}
			checkpoint()
		case "shardEnded", "shutdownRequested":
			checkpoint()
		}
		send(map[string]any{"action": "status", "responseFor": m.Action})
	}
}
