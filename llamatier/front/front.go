//go:build unix

package front

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/kvtier/kvtier/internal/env"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/llamatier/install"
	"github.com/kvtier/kvtier/llamatier/launch"
	"github.com/kvtier/kvtier/llamatier/process"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/unstored"
)

// Variables between the front and the daemon, and for people.
const (
	roleVariable = "KVTIER_LLAMA_ROLE" // "daemon" in the daemon
	realVariable = install.RealVariable

	filesVariable = "KVTIER_LLAMA_FILES" // the kind of files for the engine, for tests: memory, disk, stream, or parts of one
)

// Called reports whether a program that was started by this name stands in the place of llama-server. The
// name of a file that was not put there yet may have more before llama-server's.
func Called(as string) bool { return strings.HasSuffix(filepath.Base(as), install.ServerName) }

// Become runs this program in the place of a llama-server. It returns only an error.
func Become(real string, args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := errors.Join(os.Setenv(realVariable, real), os.Unsetenv(roleVariable)); err != nil {
		return err
	}
	err = syscall.Exec(self, append([]string{install.ServerName}, args...), os.Environ())
	return fmt.Errorf("run %s: %w", self, err)
}

// Main stands in the place of llama-server until it ends.
func Main() {
	runtime.LockOSThread() // the engine dies with the thread that starts it
	command := launch.Command{Args: os.Args[1:], Environ: os.Environ()}
	real, err := realServer()
	if err != nil {
		fail(err)
	}
	switch {
	case os.Getenv(roleVariable) == "daemon":
		daemon(command, real)
	case tierenv.Enabled() && command.Routes() && !command.Looks():
		say(func(log *slog.Logger) { log.Warn("kv tier: off for a router", "remedy", launch.RouterRemedy) })
		fail(plain(real))
	case !tierenv.Enabled() || !command.Chats():
		fail(become(real))
	case !command.Serves():
		fail(plain(real))
	case command.Hidden() != "":
		say(func(log *slog.Logger) {
			off(unstored.New(log, nil), command, slog.LevelWarn, telemetry.ObstacleOption, errors.New(command.Hidden()))
		})
		fail(plain(real))
	default:
		state, err := front(real)
		if err != nil || state.ExitCode() == notStarted {
			fail(plain(real)) // a server without a page store is better than none
		}
		process.EndAs(state)
	}
}

// say logs that nothing is stored because no server can stand before llama-server. A disk that
// hangs holds up the start for a bounded time.
func say(write func(*slog.Logger)) {
	lines, log := newDaemonLog()
	write(log)
	lines.end(logTimeout)
}

// plain runs the real llama-server in place of this program, unless there are tenants. It returns only an error.
func plain(real string) error {
	if env.Value(tierenv.TenantsVariable) != "" {
		return fmt.Errorf("llama-server is not run: alone it does not keep the tenants of %s apart; the log says why kvtier cannot stand before it", tierenv.TenantsVariable)
	}
	return become(real)
}

// become runs the real llama-server in place of this program. It returns only an error.
func become(real string) error {
	err := errors.Join(os.Unsetenv(realVariable), os.Unsetenv(roleVariable))
	if err == nil {
		err = syscall.Exec(real, append([]string{real}, os.Args[1:]...), os.Environ())
	}
	return fmt.Errorf("run %s: %w", real, err)
}

// notStarted is the status of a daemon that could not start the engine.
const notStarted = 97

func fail(err error) {
	fmt.Fprintln(os.Stderr, "kvtier:", err)
	os.Exit(1)
}

// realServer finds the real llama-server: the one that a variable names, or else the one
// beside this program, or in the place where systemd has mounted it.
func realServer() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if path := os.Getenv(realVariable); path != "" {
		return another(self, path)
	}
	return another(self, filepath.Join(filepath.Dir(self), install.RealName), install.RealServer)
}

// another returns the first of some paths that exists and is not this program, which would run
// itself for ever.
func another(self string, paths ...string) (string, error) {
	own, err := os.Stat(self)
	if err != nil {
		return "", err
	}
	var errs []error
	for _, path := range paths {
		info, err := os.Stat(path)
		if err == nil && !os.SameFile(own, info) {
			return path, nil
		}
		if err == nil {
			err = fmt.Errorf("%s is this program", path)
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("find the real llama-server: %w; set %s to its path", errors.Join(errs...), realVariable)
}

// front starts the daemon, waits for its end, and returns how it ended. The daemon opens its log
// itself, so that no disk holds up the front.
func front(real string) (*os.ProcessState, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	d := exec.Command(self, os.Args[1:]...)
	d.Args[0] = install.ServerName
	d.Env = append(os.Environ(), roleVariable+"=daemon", realVariable+"="+real)
	return process.Front(d)
}
