package valkey

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
)

// Bounds of the answers to one pipeline. A ledger and windowParts parts are shorter, and lists are asked for in steps.
const (
	answerBytes    = 16 << 20
	answerElements = 1 << 17
	lineBytes      = 64 << 10
)

// errProtocol reports another protocol, or one that a fault on the way has broken.
var errProtocol = errors.New("this is no answer of a Valkey or Redis")

// errLong reports an answer beyond the bounds.
var errLong = fmt.Errorf("its answer is longer than %d bytes, %d elements, or %d bytes in a line", answerBytes, answerElements, lineBytes)

// answers is a connection that fails at the first answer which breaks RESP or is longer than the bounds. The client
// trusts the server: it makes room for any length before the bytes are there, and panics at a negative one.
type answers struct {
	net.Conn
	line     []byte // as far as it was read
	skip     int64  // bytes of a string that are left
	bytes    int64  // of strings and lines since the last write
	elements int64  // of arrays
	failed   error
}

// Write begins a pipeline.
func (a *answers) Write(p []byte) (int, error) {
	a.bytes, a.elements = 0, 0
	return a.Conn.Write(p)
}

func (a *answers) Read(p []byte) (int, error) {
	if a.failed != nil {
		return 0, a.failed
	}
	n, err := a.Conn.Read(p)
	if a.failed = a.check(p[:n]); a.failed != nil {
		return 0, a.failed
	}
	return n, err
}

func (a *answers) check(p []byte) error {
	for len(p) > 0 {
		if n := min(int64(len(p)), a.skip); n > 0 {
			a.skip -= n
			p = p[n:]
			continue
		}
		text, rest, ended := bytes.Cut(p, []byte("\n"))
		if len(a.line)+len(text) > lineBytes {
			return errLong
		}
		a.line = append(a.line, text...)
		p = rest
		if !ended {
			return nil
		}
		if err := a.judge(a.line); err != nil {
			return err
		}
		a.line = a.line[:0]
	}
	return nil
}

// judge judges a line without its "\n", and counts what it announces. The client takes the ends of some for granted.
func (a *answers) judge(line []byte) error {
	a.bytes += int64(len(line))
	text, whole := bytes.CutSuffix(line, []byte("\r"))
	if !whole || len(text) == 0 {
		return errProtocol
	}
	kind, rest := text[0], text[1:]
	switch kind {
	case '+', '-', ':', ',', '(': // one line
		return a.bound()
	case '_':
		if len(rest) == 0 {
			return a.bound()
		}
	case '#':
		if len(rest) == 1 {
			return a.bound()
		}
	case '$', '!', '=', '*', '~', '>', '%':
		n, err := strconv.ParseInt(string(rest), 10, 64)
		if n == -1 && err == nil && (kind == '$' || kind == '*') { // none
			return a.bound()
		}
		if err == nil && n >= 0 {
			a.count(kind, min(n, answerBytes+1))
			return a.bound()
		}
	}
	return fmt.Errorf("%w: %.20q", errProtocol, text)
}

// count counts what a line with a length announces.
func (a *answers) count(kind byte, n int64) {
	switch kind {
	case '$', '!', '=':
		a.bytes += n
		a.skip = n + int64(len("\r\n"))
	case '%':
		a.elements += 2 * n
	default:
		a.elements += n
	}
}

func (a *answers) bound() error {
	if a.bytes > answerBytes || a.elements > answerElements {
		return errLong
	}
	return nil
}
