//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/internal/digests"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/llamastate"
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
)

// server is the daemon's part of a running llama-server.
type server struct {
	command launch.Command
	real    string
	engine  *llamatier.Engine
	run     *process.Daemon
	tier    atomic.Pointer[llamatier.Tier]
	settled atomic.Bool // the tier is there, or will not be
	store   atomic.Pointer[diskstore.Store]
	rates   atomic.Pointer[rates.Rates]
	ending  *ending
	log     *slog.Logger
}

// socketDirMax is the longest name of a directory for a socket, in bytes: systems bound the
// name of a socket to about 100.
const socketDirMax = 85

// daemon runs the engine, answers in its place, and ends as the engine does.
func daemon(command launch.Command, real string) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})).With("pid", os.Getpid())
	dir, err := os.MkdirTemp("", "kvtier-")
	if len(dir) > socketDirMax {
		_ = os.Remove(dir) // it is empty
		dir, err = os.MkdirTemp("/tmp", "kvtier-")
	}
	if err != nil {
		log.Error("the daemon could not start", "error", err)
		os.Exit(notStarted)
	}
	socket := filepath.Join(dir, "llama.sock")
	s := &server{command: command, real: real, engine: llamatier.Dial(socket), log: log}
	state, ended, err := s.serve(socket)
	if err := os.RemoveAll(dir); err != nil {
		log.Debug("remove the socket", "error", err)
	}
	switch {
	case err != nil:
		log.Error("the daemon could not start", "error", err)
		os.Exit(notStarted)
	case ended:
		process.EndAs(state)
	}
	os.Exit(0)
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
	config, err := tierenv.Settle(s.log, s.log)
	if err != nil {
		return nil, false, err
	}
	if err := config.PrepareRoot(); err != nil {
		return nil, false, err
	}
	if s.ending, err = openEnding(config.Local); err != nil {
		return nil, false, err
	}
	s.ending.wait(2 * flushTimeout)
	why := s.command.Unstorable()
	savePath := llamatier.SavePath()
	if why != "" {
		s.log.Warn("kv tier: off for this model", "reason", why)
		savePath = ""
		s.settled.Store(true)
	}
	web := &http.Server{
		Handler:           proxy.New(s.engine, proxy.Ours{SavePath: why == "", Metrics: why == "" && !s.command.Metrics()}, s.settled.Load, s.tier.Load, s.log),
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	s.run = &process.Daemon{
		Engine:       exec.Command(s.real, s.command.Behind(socket, savePath)...),
		FlushTimeout: flushTimeout,
		Log:          s.log,
		Flush: func(ctx context.Context) {
			s.ending.hold()
			if t := s.tier.Load(); t != nil {
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
		},
		Serve: func() {
			go func() {
				if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
					s.log.Error("serve", "error", err)
				}
			}()
			if why == "" {
				go s.settle(config)
			}
		},
	}
	return s.run.Run()
}

// settle waits until the engine has loaded its model, and opens the store.
func (s *server) settle(config tierenv.Config) {
	defer s.settled.Store(true)
	if err := s.engine.WaitReady(context.Background()); err != nil {
		return // the engine has ended
	}
	if err := s.open(config); err != nil {
		s.log.Warn("kv tier: off for this model", "model", filepath.Base(s.command.Model()), "reason", err)
	}
}

func (s *server) open(config tierenv.Config) error {
	ctx := context.Background()
	slots, err := s.engine.Slots(ctx)
	if err != nil {
		return err
	}
	shape, err := llamatier.Shape(ctx, s.engine)
	if err != nil {
		return err
	}
	if !shape.Has(llamastate.Full) {
		return errors.New("it keeps no rows of single tokens")
	}
	model, err := llamatier.ReadModel(s.command.Model())
	if err != nil {
		return err
	}
	if shape.Has(llamastate.Window) == (model.Window == 0) {
		return fmt.Errorf("its window is not known: the model's file says %d", model.Window)
	}
	files := digests.Open(filepath.Join(config.Local, "digests.json"))
	numerics := s.command.Numerics()
	if model.LongRope {
		numerics = append(numerics, fmt.Sprintf("n_ctx=%d", slots[0].Context))
	}
	identity, err := llamatier.Identity(s.command, numerics, config, shape, s.real, s.run.Engine.Process.Pid, files)
	if err != nil {
		return err
	}
	if err := files.Save(); err != nil {
		s.log.Debug("kv tier: digests of large files are not remembered", "error", err)
	}
	key := tierenv.Fingerprint(identity)
	options := config.StoreOptions()
	options.Fingerprint, options.Identity, options.Logger = key, identity, s.log
	store, err := diskstore.Open(ctx, options)
	if err != nil {
		return err
	}
	s.store.Store(store)
	s.rates.Store(config.OpenRates(key, s.command.Placement(), s.log))
	s.tier.Store(llamatier.New(llamatier.Options{
		Engine: s.engine, Shape: shape, Slots: len(slots), Context: slots[0].Context, Window: model.Window, Control: model.Control,
		Store: store, Fingerprint: key, PageTokens: config.PageTokens,
		Rates: s.rates.Load(), AlwaysRestore: config.Test, Idle: idle, Log: s.log,
	}))
	s.log.Info("kv tier: on", "local", config.Local, "slots", len(slots), "fingerprint", key.String()[:12])
	return nil
}
