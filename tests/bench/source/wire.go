package main

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"
)

const (
	jsonType = "application/x-amz-json-1.1"
	cborType = "application/x-amz-cbor-1.1"
)

func isCbor(contentType string) bool { return strings.Contains(contentType, "cbor") }

// decodeRequest returns the top members of a request: strings and whole numbers only, which is all that is looked at.
func decodeRequest(contentType string, body []byte) (map[string]any, error) {
	if len(body) == 0 {
		return map[string]any{}, nil
	}
	if !isCbor(contentType) {
		decoder := json.NewDecoder(bytes.NewReader(body))
		decoder.UseNumber()
		members := map[string]any{}
		if err := decoder.Decode(&members); err != nil {
			return nil, err
		}
		for name, value := range members {
			if number, ok := value.(json.Number); ok {
				members[name], _ = number.Int64()
			}
		}
		return members, nil
	}
	reader := cborReader{data: body}
	value, err := reader.value()
	members, ok := value.(map[string]any)
	if err == nil && !ok {
		err = errors.New("the request is no map")
	}
	return members, err
}

func text(members map[string]any, name string) string {
	found, _ := members[name].(string)
	return found
}

func encode(cbor bool, value any) []byte {
	if cbor {
		return appendCbor(nil, value)
	}
	body, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return body
}

// CBOR (RFC 8949): as much of it as the SDKs send, and as the answers need.

type cborReader struct {
	data []byte
	at   int
}

var errTruncated = errors.New("the CBOR is truncated")

type cborBreak struct{}

func (r *cborReader) take(count int) ([]byte, error) {
	if count < 0 || len(r.data)-r.at < count {
		return nil, errTruncated
	}
	r.at += count
	return r.data[r.at-count : r.at], nil
}

// head returns the major type, its argument, and whether the length is indefinite.
func (r *cborReader) head() (byte, uint64, bool, error) {
	first, err := r.take(1)
	if err != nil {
		return 0, 0, false, err
	}
	major, info := first[0]>>5, first[0]&31
	switch {
	case info < 24:
		return major, uint64(info), false, nil
	case info == 31:
		return major, 0, true, nil
	case info > 27:
		return 0, 0, false, fmt.Errorf("additional information %d", info)
	}
	raw, err := r.take(1 << (info - 24))
	if err != nil {
		return 0, 0, false, err
	}
	var argument uint64
	for _, b := range raw {
		argument = argument<<8 | uint64(b)
	}
	return major, argument, false, nil
}

func (r *cborReader) value() (any, error) {
	major, argument, indefinite, err := r.head()
	if err != nil {
		return nil, err
	}
	switch major {
	case 0:
		return int64(argument), nil
	case 1:
		return -1 - int64(argument), nil
	case 2, 3:
		return r.text(argument, indefinite)
	case 4, 5:
		return r.collection(major == 5, argument, indefinite)
	case 6:
		return r.value()
	}
	if indefinite {
		return cborBreak{}, nil
	}
	return nil, nil // a simple value or a float, which no member that matters is
}

func (r *cborReader) text(length uint64, indefinite bool) (any, error) {
	if !indefinite {
		raw, err := r.take(int(length))
		return string(raw), err
	}
	var all strings.Builder
	for {
		piece, err := r.value()
		if err != nil {
			return nil, err
		}
		if _, ended := piece.(cborBreak); ended {
			return all.String(), nil
		}
		part, _ := piece.(string)
		all.WriteString(part)
	}
}

func (r *cborReader) collection(isMap bool, count uint64, indefinite bool) (any, error) {
	members, entries := map[string]any{}, []any{}
	for n := uint64(0); indefinite || n < count; n++ {
		entry, err := r.value()
		if err != nil {
			return nil, err
		}
		if _, ended := entry.(cborBreak); ended && indefinite {
			break
		}
		if !isMap {
			entries = append(entries, entry)
			continue
		}
		value, err := r.value()
		if err != nil {
			return nil, err
		}
		if name, ok := entry.(string); ok {
			members[name] = value
		}
	}
	if isMap {
		return members, nil
	}
	return entries, nil
}

func appendHead(to []byte, major byte, argument uint64) []byte {
	switch {
	case argument < 24:
		return append(to, major<<5|byte(argument))
	case argument < 1<<8:
		return append(to, major<<5|24, byte(argument))
	case argument < 1<<16:
		return binary.BigEndian.AppendUint16(append(to, major<<5|25), uint16(argument))
	case argument < 1<<32:
		return binary.BigEndian.AppendUint32(append(to, major<<5|26), uint32(argument))
	}
	return binary.BigEndian.AppendUint64(append(to, major<<5|27), argument)
}

func appendText(to []byte, value string) []byte {
	return append(appendHead(to, 3, uint64(len(value))), value...)
}

func appendBytes(to []byte, value []byte) []byte {
	return append(appendHead(to, 2, uint64(len(value))), value...)
}

// appendTime writes epoch milliseconds, as the service does in CBOR; in JSON it writes seconds.
func appendTime(to []byte, epochMs uint64) []byte {
	return appendHead(append(to, 0xc1), 0, epochMs)
}

type timestamp uint64 // epoch milliseconds

func (t timestamp) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%d.%03d", t/1000, t%1000), nil
}

func appendCbor(to []byte, value any) []byte {
	switch v := value.(type) {
	case map[string]any:
		to = appendHead(to, 5, uint64(len(v)))
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		sort.Strings(names)
		for _, name := range names {
			to = appendCbor(appendText(to, name), v[name])
		}
		return to
	case []any:
		to = appendHead(to, 4, uint64(len(v)))
		for _, entry := range v {
			to = appendCbor(to, entry)
		}
		return to
	case string:
		return appendText(to, v)
	case int:
		return appendHead(to, 0, uint64(v))
	case timestamp:
		return appendTime(to, uint64(v))
	}
	panic(fmt.Sprintf("%T in an answer", value))
}

func base64Text(data []byte) string { return base64.StdEncoding.EncodeToString(data) }
