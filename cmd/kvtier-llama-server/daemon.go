//go:build unix

package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/llamatier"
	"github.com/kvtier/kvtier/llamatier/launch"
	"github.com/kvtier/kvtier/llamatier/process"
	"github.com/kvtier/kvtier/llamatier/proxy"
	"github.com/kvtier/kvtier/rates"
)

const (
	// flushTimeout bounds the time for which the daemon outlives the front.
	flushTimeout = 3 * time.Second
	// idle is the time after a request at which its slot is saved.
	idle = 2 * time.Second

	// diskTimeout bounds the time for which a local disk may hold up the start of the engine.
	diskTimeout = 3 * time.Second
	// openTimeout bounds the time for which the store, and reading the model's file, may hold
	// up the first prompt.
	openTimeout = 5 * time.Second
	// holdTimeout bounds the time for which a lock may hold up the flush.
	holdTimeout = 100 * time.Millisecond
	// lookTimeout bounds the time of a look at an engine that has loaded its model.
	lookTimeout = 30 * time.Second
)

// server is the daemon's part of a running llama-server.
type server struct {
	command launch.Command
	real    string
	engine  *llamatier.Engine
	run     *process.Daemon
	proxy   *proxy.Handler
	disk    *pending[*disk]
	heard   atomic.Bool // the engine has answered something
	settled atomic.Bool // prompts are answered
	store   atomic.Pointer[diskstore.Store]
	rates   atomic.Pointer[rates.Rates]
	log     *slog.Logger
}

// daemon runs the engine, answers in its place, and ends as the engine does.
func daemon(command launch.Command, real string) {
	lines := newLog(logPath())
	log := slog.New(slog.NewTextHandler(lines, &slog.HandlerOptions{Level: slog.LevelDebug})).With("pid", os.Getpid())
	end := run(command, real, log)
	lines.end(logTimeout)
	end()
}

// run runs the engine until it ends, and returns the end of this process.
func run(command launch.Command, real string, log *slog.Logger) (end func()) {
	notStartedEnd := func() { os.Exit(notStarted) }
	dir, err := newFolder()
	if err != nil {
		log.Error("the daemon could not start", "error", err)
		return notStartedEnd
	}
	defer func() {
		if err := dir.remove(); err != nil {
			log.Debug("remove the socket", "error", err)
		}
	}()
	go dir.sweep(log, time.Now())
	s := &server{command: command, real: real, engine: llamatier.Dial(dir.socket()), log: log}
	s.engine.MetricsOfClients = command.Metrics()
	s.engine.Key = aKey(command)
	state, ended, err := s.serve(dir.socket())
	switch {
	case errors.Is(err, errPlain):
		log.Warn("kv tier: off for this model", "model", filepath.Base(command.Model()), "reason", err)
		return notStartedEnd
	case err != nil:
		log.Error("the daemon could not start", "error", err)
		return notStartedEnd
	case ended && !s.heard.Load():
		log.Warn("kv tier: off: llama-server ended before it listened, and runs again as it was started", "state", state)
		return notStartedEnd
	case ended:
		return func() { process.EndAs(state) }
	}
	return func() { os.Exit(0) }
}

// serve listens, runs the engine, and returns how the engine ended.
func (s *server) serve(socket string) (*os.ProcessState, bool, error) {
	host, port, err := s.command.Address()
	if err != nil {
		return nil, false, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, false, err
	}
	defer l.Close()
	prepare := func() (*disk, error) { return prepareDisk(s.command.Model(), s.log) }
	if err := s.awaitDisk(prepare, diskTimeout); err != nil {
		return nil, false, err
	}
	why := s.command.Unstorable()
	savePath := llamatier.SavePath()
	if why != "" {
		s.log.Warn("kv tier: off for this model", "reason", why)
		savePath = ""
		s.settled.Store(true)
	}
	key, file := s.command.Keys()
	ours := proxy.Ours{SavePath: why == "", Metrics: why == "" && !s.command.Metrics(), Keys: key != "" || file != ""}
	s.proxy = proxy.New(s.engine, ours, proxy.State{Listening: s.heard.Load, Ready: s.settled.Load}, s.log)
	web := &http.Server{
		Handler:           s.proxy,
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	s.run = &process.Daemon{
		Engine:       s.engineCommand(socket, savePath),
		FlushTimeout: flushTimeout,
		Log:          s.log,
		Flush:        s.flush,
		Serve: func() {
			go func() {
				if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
					s.log.Error("serve", "error", err)
				}
			}()
			go s.settle(s.open, openTimeout)
		},
	}
	state, ended, err := s.run.Run()
	_ = web.Close() // clients see the end at once
	return state, ended, err
}

// engineCommand is the real server, without the variables between the front and the daemon.
func (s *server) engineCommand(socket, savePath string) *exec.Cmd {
	cmd := exec.Command(s.real, s.command.Behind(socket, savePath)...)
	cmd.Env = slices.DeleteFunc(slices.Clone(s.command.Environ), func(v string) bool {
		return strings.HasPrefix(v, roleVariable+"=") || strings.HasPrefix(v, realVariable+"=")
	})
	return cmd
}

// awaitDisk prepares the local disk. It returns an error if there is none for pages. A disk that
// does not answer in time is waited for in the background.
func (s *server) awaitDisk(prepare func() (*disk, error), most time.Duration) error {
	s.disk = begin(prepare)
	if !s.disk.within(most) {
		s.log.Warn("kv tier: the local disk does not answer; the model is loaded without waiting for it")
		return nil
	}
	d, err := s.disk.wait()
	if err != nil {
		return err
	}
	begin(func() (struct{}, error) { d.ending.wait(2 * flushTimeout); return struct{}{}, nil }).within(2 * flushTimeout)
	return nil
}

// flush stores all slots, and closes the store.
func (s *server) flush(ctx context.Context) {
	if s.disk.within(0) && s.disk.err == nil {
		d := s.disk.value
		begin(func() (struct{}, error) { d.ending.hold(); return struct{}{}, nil }).within(holdTimeout)
		noted := begin(func() (struct{}, error) { return struct{}{}, d.runs.inOrder(s.command.Model()) })
		defer noted.within(holdTimeout)
	}
	if t := s.proxy.Tier(); t != nil {
		t.Flush(ctx)
	}
	if r := s.rates.Load(); r != nil {
		if err := r.Close(); err != nil {
			s.log.Debug("kv tier: rates are not kept", "error", err)
		}
	}
	if store := s.store.Load(); store != nil {
		if err := store.Close(); err != nil {
			s.log.Warn("kv tier: close the store", "error", err)
		}
	}
}
