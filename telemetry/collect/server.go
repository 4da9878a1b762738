package collect

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// Limits of the connections.
const (
	connectionsMax = telemetry.ProcessesMax + 64 // one of each process, and readers
	requestsMax    = 4                           // whose bodies are in memory
	headerBytesMax = 8 << 10
	queueTime      = time.Second // most wait for one of requestsMax
	headerTime     = 2 * time.Second
	bodyTime       = 5 * time.Second
	answerTime     = 10 * time.Second
	idleTime       = 30 * time.Second
)

// Paths of requests.
const (
	reportPath = "/v1/report"
	statePath  = "/v1/state"
	wordsPath  = "/v1/words"
)

// server answers the requests to a collector.
type server struct {
	root     string
	books    *books
	writer   *writer
	name     func(weights string) string
	requests chan struct{}
}

func newServer(root string, b *books, w *writer, name func(string) string) *http.Server {
	s := &server{root: root, books: b, writer: w, name: name, requests: make(chan struct{}, requestsMax)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+reportPath, s.bounded(s.report))
	mux.HandleFunc("GET "+statePath, s.state)
	mux.HandleFunc("GET "+wordsPath, s.bounded(s.words))
	return &http.Server{
		Handler: mux, MaxHeaderBytes: headerBytesMax,
		ReadHeaderTimeout: headerTime, ReadTimeout: bodyTime, WriteTimeout: answerTime, IdleTimeout: idleTime,
		ErrorLog: log.New(io.Discard, "", 0), // of connections that break
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			if own, ok := conn.(*connection); ok {
				return context.WithValue(ctx, peerOfConnection{}, own.peer)
			}
			return ctx
		},
	}
}

// peerOfConnection is the key of a connection's peer in the context of its requests.
type peerOfConnection struct{}

// bounded lets a few requests run at a time.
func (s *server) bounded(handle http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		timer := time.NewTimer(queueTime)
		defer timer.Stop()
		select {
		case s.requests <- struct{}{}:
			defer func() { <-s.requests }()
			handle(w, r)
		case <-timer.C:
			http.Error(w, "too many requests at a time", http.StatusServiceUnavailable)
		case <-r.Context().Done():
		}
	}
}

func (s *server) report(w http.ResponseWriter, r *http.Request) {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, telemetry.ReportBytesMax))
	if err != nil {
		status := http.StatusBadRequest
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			status = http.StatusRequestEntityTooLarge
		}
		http.Error(w, "read the report: "+err.Error(), status)
		return
	}
	report, err := decodeReport(data)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	from, _ := r.Context().Value(peerOfConnection{}).(peer)
	last := r.URL.Query().Get("last") == "1"
	if err := s.books.add(report, from.pid, last); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	if last {
		if err := s.writer.written(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	if report.Model.Name == "" {
		s.name(report.Model.Weights) // so that it is known when somebody reads
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *server) state(w http.ResponseWriter, r *http.Request) {
	data, err := s.writer.shown(r.Context())
	answer(w, data, err)
}

func (s *server) words(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if !query.Has("namespace") {
		http.Error(w, "name a namespace: "+wordsPath+"?namespace=", http.StatusBadRequest)
		return
	}
	namespace := query.Get("namespace")
	state := s.books.state(s.root, s.name)
	keepWords(&state, &namespace)
	// Totals are in the file before they are shown, unless it cannot be written.
	_ = s.writer.written(r.Context())
	data, err := encodeState(state)
	answer(w, data, err)
}

func answer(w http.ResponseWriter, data []byte, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data)
}

// listener accepts the connections of the directory's owner and of root, a bounded number at a
// time. All others are closed at once: they would fill the system's queue.
type listener struct {
	*net.UnixListener
	owner int
	open  atomic.Int64
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		from := peerOf(conn)
		if !from.trusted(l.owner) || l.open.Add(1) > connectionsMax {
			if from.trusted(l.owner) {
				l.open.Add(-1)
			}
			conn.Close()
			continue
		}
		return &connection{UnixConn: conn, peer: from, listener: l}, nil
	}
}

// connection counts as open until it is closed.
type connection struct {
	*net.UnixConn
	peer     peer
	listener *listener
	closed   atomic.Bool
}

func (c *connection) Close() error {
	if !c.closed.Swap(true) {
		c.listener.open.Add(-1)
	}
	return c.UnixConn.Close()
}
