package valkey

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier/tiertest"
)

// greeting is what a server answers to HELLO 3.
const greeting = "%2\r\n$5\r\nproto\r\n:3\r\n$7\r\nversion\r\n$5\r\n8.0.0\r\n"

// answering is the address of a server that gives some answers in each connection, and then hears on.
func answering(t *testing.T, answers ...string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	serve := func(conn net.Conn) {
		defer conn.Close()
		asked := make([]byte, connBytes)
		for _, answer := range answers {
			if _, err := conn.Read(asked); err != nil {
				return
			}
			if _, err := conn.Write([]byte(answer)); err != nil {
				return
			}
		}
		_, _ = io.Copy(io.Discard, conn)
	}
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			go serve(conn)
		}
	}()
	return "valkey://" + l.Addr().String()
}

// broken are answers of no server: the client would panic at some, and make room for others.
var broken = map[string]error{
	"HTTP/1.1 400 Bad Request\r\n\r\n": errProtocol,
	"\r\n":                             errProtocol,
	"$5\n":                             errProtocol,
	"$-5\r\n":                          errProtocol,
	"$9223372036854775807\r\n":         errLong,
	"$9223372036854775808\r\n":         errProtocol,
	"$17000000\r\n":                    errLong,
	"$?\r\n;17000000\r\n":              errProtocol,
	"$?\r\n;-1\r\n":                    errProtocol,
	"#t\r$17000000\r\n":                errProtocol,
	"_\r$17000000\r\n":                 errProtocol,
	"*-7\r\n":                          errProtocol,
	"*200000\r\n":                      errLong,
	"*?\r\n":                           errProtocol,
	"%-1\r\n":                          errProtocol,
	"%4611686018427387904\r\n":         errLong,
	"~-1\r\n":                          errProtocol,
	"|1\r\n":                           errProtocol,
	"*1\r\n$1\r\nx\r\n$-2\r\n":         errProtocol,
	"+" + strings.Repeat("x", 70_000):  errLong,
	strings.Repeat("*1\r\n", 140_000):  errLong,
}

// TestBrokenAnswers: an answer that breaks the protocol is an error of the operation, also in the greeting of a
// connection, and the error tells nothing but what was wrong.
func TestBrokenAnswers(t *testing.T) {
	for answer, want := range broken {
		for _, answers := range [][]string{{greeting, answer}, {answer}} {
			_, err := openAt(t, answering(t, answers...)).Find(ctx, []pagefile.Name{tiertest.Page(1)}, false)
			require.ErrorContains(t, err, want.Error(), "%.30q", answer)
		}
	}
}

// TestListsWithoutAnEnd: a server that tells the same elements again and again is an error.
func TestListsWithoutAnEnd(t *testing.T) {
	same := fmt.Sprintf("*%d\r\n", listAtOnce) + strings.Repeat("$1\r\nx\r\n", listAtOnce)
	tr := openAt(t, answering(t, greeting, same, same, same))
	_, err := tr.Branches(ctx, tiertest.Fingerprint, []byte{1})
	require.ErrorContains(t, err, errRepeats.Error())
}

// TestAnswersInPieces: where an answer is divided changes nothing, and a pipeline may be answered up to the bounds.
func TestAnswersInPieces(t *testing.T) {
	pieces := func(answer string, step int) (err error) {
		for a := new(answers); answer != "" && err == nil; answer = answer[min(step, len(answer)):] {
			err = a.check([]byte(answer[:min(step, len(answer))]))
		}
		return err
	}
	const good = greeting + "+OK\r\n-ERR no\r\n:-1\r\n_\r\n#t\r\n,1.5\r\n$-1\r\n*-1\r\n$0\r\n\r\n*2\r\n$2\r\n\r\n\r\n~0\r\n>1\r\n(5\r\n$3\r\n$-2\r\n"
	for step := range len(good) {
		require.NoError(t, pieces(good, step+1))
	}
	for answer, want := range broken {
		require.ErrorIs(t, pieces(answer, 3), want, "%.30q", answer)
	}
	const part = 1 << 20
	one := "$1048576\r\n" + strings.Repeat("$", part) + "\r\n"
	require.NoError(t, pieces(strings.Repeat(one, answerBytes/part-1), connBytes))
	require.ErrorIs(t, pieces(strings.Repeat(one, answerBytes/part), connBytes), errLong)
}
