package ollamatest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// fakeEnv makes this test binary behave as an ollama executable.
const fakeEnv = "OLLAMATEST_FAKE"

// Behaviours of the fake; they may be combined.
const (
	fakePlain     = "plain"
	fakeStubborn  = "stubborn"   // ignores a request to end
	fakeFails     = "fails"      // ends before it listens
	fakeOrphans   = "orphans"    // ends without ending its runner
	fakeHangs     = "hangs"      // never logs its address
	fakeHalfLines = "half-lines" // writes its log a few bytes at a time
	fakeHolds     = "holds"      // pauses in the middle of an answer until the client disconnects
	fakeParent    = "parent"     // is no ollama, and starts a plain fake with Start
)

func TestMain(m *testing.M) {
	if behaviour := os.Getenv(fakeEnv); behaviour != "" {
		fakeOllama(behaviour)
		return
	}
	goleak.VerifyTestMain(m)
}

// fakeOllama serves "/", ends the connection in the middle of an answer to
// /api/generate, and has one runner.
func fakeOllama(behaviour string) {
	if behaviour == fakeParent {
		s, err := Start(context.Background(), fakeOptions(fakePlain))
		must(err)
		fmt.Println(s.PID(), s.tempDir)
		select {}
	}
	has := func(b string) bool { return strings.Contains(behaviour, b) }
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM, os.Interrupt)
	if os.Args[1] == "runner" {
		select {} // holds a model until killed
	}
	if has(fakeFails) {
		fmt.Fprintln(os.Stderr, "Error: no luck today")
		os.Exit(3)
	}
	runner := exec.Command(os.Args[0], "runner", "--ollama-engine", "--model", "x")
	runner.Stderr = os.Stderr
	must(runner.Start())
	fmt.Fprintln(os.Stderr, "home", os.Getenv("HOME"), "host", os.Getenv("OLLAMA_HOST"), "secret", os.Getenv("OLLAMA_SECRET"))

	listener, err := net.Listen("tcp", os.Getenv("OLLAMA_HOST"))
	must(err)
	line := fmt.Sprintf("level=INFO msg=\"Listening on %s (version 0.0.0)\"\n", listener.Addr())
	switch {
	case has(fakeHangs):
	case has(fakeHalfLines):
		for line != "" {
			n := min(5, len(line))
			fmt.Fprint(os.Stderr, line[:n])
			line = line[n:]
		}
	default:
		fmt.Fprint(os.Stderr, line)
	}
	http.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("/api/generate", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, `{"response":"half an "}`)
		w.(http.Flusher).Flush()
		if has(fakeHolds) {
			io.Copy(io.Discard, r.Body) //nolint:errcheck // the server notices a leaving client once the request is read
			fmt.Fprintln(os.Stderr, "holding")
			<-r.Context().Done()
			fmt.Fprintln(os.Stderr, "the client left")
		}
	})
	go http.Serve(listener, nil) //nolint:errcheck // it ends with the process
	if has(fakeStubborn) {
		select {}
	}
	<-terminated
	if !has(fakeOrphans) {
		must(runner.Process.Kill())
		runner.Wait() //nolint:errcheck // it was killed
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func fakeOptions(behaviour string) Options {
	return Options{Binary: os.Args[0], Env: []string{fakeEnv + "=" + behaviour}}
}

func startFake(t *testing.T, behaviour string) *Server {
	return ForTest(t, fakeOptions(behaviour))
}

// requireGone fails if any process of the server is left.
func requireGone(t *testing.T, pid int) {
	t.Helper()
	left, err := family(pid)
	require.NoError(t, err)
	require.Empty(t, left)
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}
