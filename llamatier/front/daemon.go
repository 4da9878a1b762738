//go:build unix

package front

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	"github.com/kvtier/kvtier/internal/digests"
	"github.com/kvtier/kvtier/internal/steady"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/llamatier"
	"github.com/kvtier/kvtier/llamatier/identity"
	"github.com/kvtier/kvtier/llamatier/install"
	"github.com/kvtier/kvtier/llamatier/launch"
	"github.com/kvtier/kvtier/llamatier/process"
	"github.com/kvtier/kvtier/llamatier/proxy"
	"github.com/kvtier/kvtier/llamatier/slotfile"
	"github.com/kvtier/kvtier/rates"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/unstored"
)

const (
	// flushTimeout bounds the time for which the daemon outlives the front.
	flushTimeout = 3 * time.Second
	// idle is the time after a request at which its slot is saved.
	idle = 2 * time.Second

	// diskTimeout bounds the time for which a disk may hold up the start of the engine.
	diskTimeout = 3 * time.Second
	// openTimeout bounds the time for which the store, and reading the model's file, may hold
	// up the first prompt.
	openTimeout = 5 * time.Second
	// removeTimeout bounds the time for which files on a disk, or a note of the end, hold up the end.
	removeTimeout = time.Second
	// parentMax is the longest path in which the engine's folder is made, in bytes: systems bound
	// the name of a socket to about 100.
	parentMax = 60
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
	files   *slotfile.Files
	streams bool // files may be streams

	model  *pending[identity.Model]
	before *pending[map[string]digests.State] // of the model and its adapters, before the engine reads them

	tenants   tierenv.Tenants
	partBytes int64       // of streams; 0: as usual
	heard     atomic.Bool // the engine has answered something
	settled   atomic.Bool // prompts are answered
	store     atomic.Pointer[diskstore.Store]
	rates     atomic.Pointer[rates.Rates]
	reports   atomic.Pointer[reports]
	log       *slog.Logger
	meter     *telemetry.Meter
	watch     *unstored.Watch
}

// daemon runs the engine, answers in its place, and ends as the engine does.
func daemon(command launch.Command, real string) {
	lines, log := newDaemonLog()
	end := runEngine(command, real, log)
	lines.end(logTimeout)
	end()
}

// newDaemonLog returns the daemon's log, whose lines carry the number of this process.
func newDaemonLog() (*logFile, *slog.Logger) {
	lines := newLog(install.LogPath())
	return lines, slog.New(slog.NewTextHandler(lines, &slog.HandlerOptions{Level: slog.LevelDebug})).With("pid", os.Getpid())
}

// runEngine runs the engine until it ends, and returns the end of this process.
func runEngine(command launch.Command, real string, log *slog.Logger) (end func()) {
	notStartedEnd := func() { os.Exit(notStarted) }
	dir, err := newFolder(log)
	if err != nil {
		off(unstored.New(log, nil), command, slog.LevelError, causeOf(err), err)
		return notStartedEnd
	}
	defer func() {
		run(func() error {
			err := dir.Remove()
			if err != nil {
				log.Debug("remove the socket", "error", err)
			}
			return err
		}).within(removeTimeout)
	}()
	go dir.Sweep(log, memoryDir)
	meter := new(telemetry.Meter)
	s := &server{command: command, real: real, engine: llamatier.Dial(dir.Socket()), log: log, meter: meter, watch: unstored.New(log, meter)}
	var options slotfile.Options
	options, s.streams, s.partBytes = fileOptions(log)
	s.files = slotfile.New(dir, options)
	defer s.leaveDisk()
	s.engine.MetricsOfClients = command.Metrics()
	s.engine.Key = aKey(command)
	if s.tenants, err = readTenants(); err != nil {
		off(s.watch, command, slog.LevelError, telemetry.ObstacleOption, err)
		return notStartedEnd
	}
	state, ended, err := s.serve(dir.Socket())
	switch {
	case errors.Is(err, errPlain):
		off(s.watch, command, slog.LevelWarn, telemetry.ObstacleEngine, err)
	case err != nil:
		off(s.watch, command, slog.LevelError, causeOf(err), err)
	case !ended:
		return func() { os.Exit(0) }
	case s.heard.Load():
		return func() { process.EndAs(state) }
	default:
		off(s.watch, command, slog.LevelWarn, telemetry.ObstacleEngine, fmt.Errorf("llama-server ended before it listened (%s), and runs again as it was started", state))
	}
	return notStartedEnd
}

// off logs that nothing is stored for a model. People and kvtier ollama status search for the message.
func off(watch *unstored.Watch, command launch.Command, level slog.Level, cause telemetry.Obstacle, reason error) {
	watch.Off(level, cause, reason, "model", filepath.Base(command.Model()))
}

// offLoaded does as off for a model that stays loaded, and reports it.
func (s *server) offLoaded(cause telemetry.Obstacle, reason error) {
	off(s.watch, s.command, slog.LevelWarn, cause, reason)
	go func() {
		d, err := s.disk.wait()
		if err != nil || s.reports.Load() != nil {
			return
		}
		weights, _ := digests.OfBlob(s.command.Model())
		model := telemetry.Model{Weights: weights, Namespace: d.config.Namespace, PageTokens: d.config.PageTokens}
		if weights == "" {
			model.Name = filepath.Base(s.command.Model())
		}
		s.startReports(d.config, model, s.watch.Fill)
	}()
}

// causeOf is the cause of an error before the store was open.
func causeOf(err error) telemetry.Obstacle {
	if llamatier.CauseOf(err) == llamatier.CauseFormat {
		return telemetry.ObstacleSlotFile
	}
	return tierenv.ObstacleOf(err)
}

// fileOptions says how files for the engine are made, whether they may be streams, and of which
// parts. A variable names one kind, for tests and measurements.
func fileOptions(log *slog.Logger) (options slotfile.Options, streams bool, partBytes int64) {
	options.Log = log
	kind := os.Getenv(filesVariable)
	switch kind {
	case "memory":
		options.Free = func(string) (int64, error) { return 0, nil }
	case "parts":
		partBytes = 64 << 10
		fallthrough
	case "stream", "disk":
		options.Available = func() (uint64, error) { return 0, nil }
	}
	return options, kind != "memory" && kind != "disk", partBytes
}

// newFolder makes the engine's folder, in memory if the disk of temporary files hangs.
func newFolder(log *slog.Logger) (*slotfile.Folder, error) {
	made := begin(func() (*slotfile.Folder, error) { return slotfile.NewFolder(temporary()) })
	if made.within(diskTimeout) {
		return made.value, made.err
	}
	log.Warn("kv tier: the temporary directory does not answer", "instead", memoryDir)
	go func() {
		if late, err := made.wait(); err == nil {
			_ = late.Remove() // the next daemon does
		}
	}()
	return slotfile.NewFolder(memoryDir)
}

// memoryDir is a directory in memory, on Linux.
const memoryDir = "/dev/shm"

// temporary is the directory of the engine's folder.
func temporary() string {
	if parent := os.TempDir(); len(parent) <= parentMax {
		return parent
	}
	return "/tmp"
}

// serve listens, runs the engine, and returns how the engine ended.
func (s *server) serve(socket string) (*os.ProcessState, bool, error) {
	host, port, err := s.command.Address(s.real)
	if err != nil {
		return nil, false, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, false, err
	}
	defer l.Close()
	prepare := func() (*disk, error) { return prepareDisk(s.command.Model(), s.files, s.log) }
	if err := s.awaitDisk(prepare, diskTimeout); err != nil {
		return nil, false, err
	}
	why := s.unstorable()
	savePath := s.files.Dir()
	if why != "" {
		cause := telemetry.ObstacleOption
		if s.model != nil {
			cause = telemetry.ObstacleModel
		}
		s.offLoaded(cause, errors.New(why))
		savePath = ""
		s.settled.Store(true)
	} else if s.streams {
		go s.files.Mount()
		defer s.files.Unmount()
	}
	s.proxy = proxy.New(s.engine, hidden(s.command, savePath, s.tenants), proxy.State{Listening: s.heard.Load, Ready: s.settled.Load}, s.log)
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
	if r := s.reports.Load(); ended && r != nil {
		r.end() // nothing was flushed
	}
	return state, ended, err
}

// unstorable returns the reason why no slot can be stored, or "". If so, the engine keeps its own cache of
// prompts.
func (s *server) unstorable() string {
	if why := s.command.Unstorable(); why != "" {
		return why
	}
	s.model = begin(func() (identity.Model, error) { return identity.ReadModel(s.command.Model()) })
	if s.model.within(diskTimeout) && s.model.err == nil {
		return s.model.value.Unstorable()
	}
	return ""
}

// engineCommand is the real server, without the variables between the front and the daemon.
func (s *server) engineCommand(socket, savePath string) *exec.Cmd {
	s.before = begin(s.fileStates)
	s.before.within(diskTimeout)
	cmd := exec.Command(s.real, s.command.Behind(socket, savePath)...)
	cmd.Env = slices.DeleteFunc(slices.Clone(s.command.Environ), func(v string) bool {
		return strings.HasPrefix(v, roleVariable+"=") || strings.HasPrefix(v, realVariable+"=")
	})
	return cmd
}

// hidden are the options that the engine has for our sake. Without a path to save to it has none.
func hidden(c launch.Command, savePath string, tenants tierenv.Tenants) proxy.Ours {
	key, file := c.Keys()
	o := proxy.Ours{Keys: key != "" || file != "", Pings: c.Pings(), Tenants: tenants, Shares: c.SharesDrafts()}
	if savePath != "" {
		o.SavePath, o.Metrics, o.Slots = true, !c.Metrics(), !c.Slots()
	}
	return o
}

// awaitDisk prepares the local disk. It returns an error if there is none for pages. A disk that
// does not answer in time is waited for in the background.
func (s *server) awaitDisk(prepare func() (*disk, error), most time.Duration) error {
	s.disk = begin(prepare)
	if !s.disk.within(most) {
		s.log.Warn("kv tier: the local disk does not answer; the model is loaded without waiting for it")
		return nil
	}
	_, err := s.disk.wait()
	return err
}

// leaveDisk removes the engine's files on the local disk. If the disk hangs, the next daemon does.
func (s *server) leaveDisk() {
	if s.disk == nil || !s.disk.within(0) || s.disk.value == nil || s.disk.value.files == nil {
		return
	}
	run(s.disk.value.files.Remove).within(removeTimeout)
}

// flush stores all slots, and closes the store.
func (s *server) flush(ctx context.Context) {
	if s.disk.within(0) && s.disk.err == nil {
		d := s.disk.value
		noted := run(func() error { return d.runs.inOrder(s.command.Model()) })
		defer noted.within(removeTimeout)
	}
	if t := s.proxy.Tier(); t != nil {
		t.Flush(ctx)
	}
	if r := s.reports.Load(); r != nil {
		// beside the rest: a listener that is stopped takes no time from the store
		ended := run(func() error { r.end(); return nil })
		defer ended.wait() //nolint:errcheck // there is none
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

// readTenants reads the tenants, from a disk that may hang.
func readTenants() (tierenv.Tenants, error) {
	read := begin(tierenv.TenantsFromEnvironment)
	if !read.within(diskTimeout) {
		return nil, fmt.Errorf("read the tenants of %s: the disk does not answer", tierenv.TenantsVariable)
	}
	return read.value, read.err
}

// keysMax bounds a file of keys, in bytes.
const keysMax = 1 << 20

// aKey returns a key with which the engine answers us, "" for none. Without the right one the
// engine refuses our first question, and nothing is stored.
func aKey(command launch.Command) string {
	key, file := command.Keys()
	if key != "" || file == "" {
		return key
	}
	read := begin(func() (string, error) { return keyIn(file) })
	if !read.within(diskTimeout) || read.err != nil {
		return ""
	}
	return read.value
}

// keyIn returns the first key in a file. A pipe is left to the engine, which reads it once.
func keyIn(path string) (string, error) {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return "", err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, keysMax))
	if err != nil {
		return "", err
	}
	for _, line := range strings.Split(string(b), "\n") {
		if line != "" && line[0] != '#' {
			return line, nil
		}
	}
	return "", nil
}

// pending is the result of a function that runs in the background because it may hang.
type pending[T any] struct {
	done  chan struct{} // closed when value and err are there
	value T
	err   error
}

// begin runs a function in the background.
func begin[T any](f func() (T, error)) *pending[T] {
	p := &pending[T]{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.value, p.err = f()
	}()
	return p
}

// run runs a function without a value in the background.
func run(f func() error) *pending[struct{}] {
	return begin(func() (struct{}, error) { return struct{}{}, f() })
}

// within waits for the result, at most some time, and reports whether it is there.
func (p *pending[T]) within(most time.Duration) bool {
	return steady.Ended(p.done, most)
}

// wait waits for the result as long as it takes.
func (p *pending[T]) wait() (T, error) {
	<-p.done
	return p.value, p.err
}
