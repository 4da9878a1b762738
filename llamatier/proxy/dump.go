package proxy

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
)

// dump writes what a model has given to a tool as llama-server does, whatever spelling a client has sent:
// without spaces and needless escapes, and with the shortest numbers. No value, or null, is an empty object.
func dump(value json.RawMessage) string {
	if !set(value, "") {
		return "{}"
	}
	in := json.NewDecoder(bytes.NewReader(value))
	in.UseNumber()
	var out strings.Builder
	if dumpNext(&out, in) != nil {
		return "{}"
	}
	return out.String()
}

// dumpNext writes the next value of a decoder.
func dumpNext(out *strings.Builder, in *json.Decoder) error {
	token, err := in.Token()
	if err != nil {
		return err
	}
	begin, nested := token.(json.Delim)
	if !nested {
		out.WriteString(dumpSingle(token))
		return nil
	}
	out.WriteString(begin.String())
	for first := true; in.More(); first = false {
		if !first {
			out.WriteByte(',')
		}
		if begin == '{' {
			name, err := in.Token()
			if err != nil {
				return err
			}
			out.WriteString(dumpSingle(name) + ":")
		}
		if err := dumpNext(out, in); err != nil {
			return err
		}
	}
	end, err := in.Token()
	if err == nil {
		out.WriteString(end.(json.Delim).String())
	}
	return err
}

// dumpSingle is a value that is no list or object.
func dumpSingle(token json.Token) string {
	n, ok := token.(json.Number)
	if !ok {
		return string(encode(token))
	}
	if _, err := strconv.ParseInt(string(n), 10, 64); err == nil {
		return string(n)
	}
	if _, err := strconv.ParseUint(string(n), 10, 64); err == nil {
		return string(n)
	}
	v, err := n.Float64()
	if err != nil {
		return string(n)
	}
	if size := math.Abs(v); size != 0 && (size < 1e-4 || size >= 1e15) {
		return strconv.FormatFloat(v, 'e', -1, 64)
	}
	text := strconv.FormatFloat(v, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}
