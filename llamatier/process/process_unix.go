//go:build unix

package process

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/kvtier/kvtier/internal/steady"
)

// Daemon runs an engine and stands before it.
type Daemon struct {
	// Engine is the real llama-server, not started yet. Its output is the front's.
	Engine *exec.Cmd

	// Serve begins to answer requests once the engine has started. It returns at once.
	Serve func()

	// Flush stores everything that must not be lost, while the engine still runs. Run does not
	// wait for Flush after ctx has ended.
	Flush func(ctx context.Context)

	// FlushTimeout is the time after which ctx ends.
	FlushTimeout time.Duration

	Log *slog.Logger
}

// Run runs the engine until the engine ends, the front dies, or somebody asks the daemon to end, and returns
// how the engine ended. ended is false if the daemon ended the engine, which may still be about to end then:
// state is nil. The caller's goroutine must be locked to its thread until the process ends, because the
// engine dies with the thread that started it.
func (d *Daemon) Run() (state *os.ProcessState, ended bool, err error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, ends()...)
	alive := os.NewFile(aliveFile, "alive")
	output, errors := os.NewFile(outputFile, "output"), os.NewFile(errorsFile, "errors")
	d.Engine.Stdout, d.Engine.Stderr = output, errors
	if err := startEngine(d.Engine); err != nil {
		return nil, false, fmt.Errorf("start %s: %w", d.Engine.Path, err)
	}
	// A program that reads the engine's output must see the end when the engine ends.
	output.Close()
	errors.Close()

	exited := begin(func() { _ = d.Engine.Wait() })                 // ProcessState has the result
	orphaned := begin(func() { _, _ = io.Copy(io.Discard, alive) }) // nobody writes: it returns when the front is dead
	d.Serve()
	select {
	case <-exited:
		d.Log.Info("llama-server ended", "state", d.Engine.ProcessState)
		return d.Engine.ProcessState, true, nil
	case <-orphaned:
		d.Log.Info("the front was killed")
	case sig := <-signals:
		d.Log.Info("asked to end", "signal", sig)
	}
	d.flush(exited)
	_ = d.Engine.Process.Kill()             // it may have ended already
	if !steady.Ended(exited, killTimeout) { // it uses a disk that hangs, or a stream of ours
		d.Log.Warn("kv tier: llama-server does not end yet", "waited", killTimeout)
		return nil, false, nil
	}
	return d.Engine.ProcessState, false, nil
}

// killTimeout bounds the wait for an engine that was killed: the next one needs its memory, and
// Docker ends everything after 10 s.
const killTimeout = 5 * time.Second

// flush flushes within FlushTimeout, and as long as the engine runs.
func (d *Daemon) flush(exited <-chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), d.FlushTimeout)
	defer cancel()
	select {
	case <-begin(func() { d.Flush(ctx) }):
	case <-exited:
	case <-ctx.Done():
	}
}

// begin runs a function in a goroutine, and returns a channel that is closed when the function has returned.
func begin(f func()) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	return done
}

// The files of a daemon, besides the three standard ones.
const (
	aliveFile  = 3 // the end of a pipe whose other end the front holds
	outputFile = 4 // of the front, for the engine
	errorsFile = 5
)

// Front starts the daemon and returns when the daemon has ended. Front calls daemon.Start
// with the files of a front added. The daemon's own output must not be the front's.
func Front(daemon *exec.Cmd) (*os.ProcessState, error) {
	read, hold, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe to the daemon: %w", err)
	}
	defer hold.Close()
	defer read.Close()
	daemon.ExtraFiles = []*os.File{read, os.Stdout, os.Stderr}
	daemon.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // signals from a terminal end the front
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, ends()...)
	defer signal.Stop(signals)
	if err := daemon.Start(); err != nil {
		return nil, fmt.Errorf("start the daemon: %w", err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := begin(func() { _ = daemon.Wait() }) // ProcessState has the result
	unread := begin(func() {
		if !waitUnread(ctx, os.Stdout) {
			<-ctx.Done()
		}
	})
	for {
		select {
		case <-ended:
			return daemon.ProcessState, nil
		case <-signals:
		case <-unread:
			unread = nil
		}
		_ = daemon.Process.Signal(syscall.SIGTERM) // it may have ended already
	}
}

// ends are the signals that ask a process to end. A program that nohup starts outlives its terminal.
func ends() []os.Signal {
	signals := []os.Signal{syscall.SIGTERM, syscall.SIGINT}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

// EndAs ends this process as another process ended: with its status, or by its signal.
func EndAs(state *os.ProcessState) {
	status := state.Sys().(syscall.WaitStatus)
	if !status.Signaled() {
		os.Exit(status.ExitStatus())
	}
	// Go handles most signals itself; a shell handles none.
	kill := fmt.Sprintf("ulimit -c 0; kill -%d $$", status.Signal())
	_ = syscall.Exec("/bin/sh", []string{"sh", "-c", kill}, os.Environ())
	os.Exit(128 + int(status.Signal()))
}
