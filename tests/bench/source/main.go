// A stand-in for Kinesis whose answers cost it next to nothing: GetRecords is answered from bytes that were made once,
// of which only the numbers that advance are written anew. Each shard has endless data and no read limits.
//
//	source serve -folder F -shards N FILE...   TLS; HTTP/2 with CBOR or HTTP/1.1 with JSON, as the client asks
//	source load  -folder F -url U -wire h2-cbor|h1-json -shards N -limit L -seconds S   how fast that is
package main

import (
	"fmt"
	"os"
)

func main() {
	command := ""
	if len(os.Args) > 1 {
		command = os.Args[1]
	}
	var err error
	switch command {
	case "serve":
		err = serve(os.Args[2:])
	case "load":
		err = load(os.Args[2:])
	default:
		err = fmt.Errorf("usage: source serve | load")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "source:", err)
		os.Exit(1)
	}
}
