//go:build unix

package process

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

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
