package process

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/internal/proc"
)

// role says which of the processes this is; empty for the test.
const role = "KVTIER_TEST_ROLE"

func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "front":
		front()
	case "daemon":
		daemon()
	}
	os.Exit(m.Run())
}

// noEngine is the status of a daemon in these tests that could not start the engine.
const noEngine = 44

// self is a command that runs this program in another role.
func self(as string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), role+"="+as)
	return cmd
}

// note adds a line to the story of a test.
func note(format string, args ...any) {
	f, err := os.OpenFile(os.Getenv("STORY"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		fmt.Fprintf(f, format+"\n", args...)
		f.Close()
	}
}

func front() {
	d := self("daemon")
	log, _ := os.OpenFile(os.Getenv("STORY")+".log", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	d.Stdout, d.Stderr = log, log
	state, err := Front(d)
	if err != nil {
		note("front: %v", err)
		os.Exit(9)
	}
	EndAs(state)
}

func daemon() {
	note("daemon %d", os.Getpid())
	d := &Daemon{
		Engine:       exec.Command("/bin/sh", "-c", engine),
		Serve:        func() {},
		FlushTimeout: time.Minute,
		Log:          slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Flush: func(ctx context.Context) {
			note("flush, the engine answers %q", ask("well?"))
		},
	}
	if os.Getenv("HANG") != "" {
		d.FlushTimeout = 10 * time.Millisecond
		d.Flush = func(context.Context) { select {} }
	}
	if path := os.Getenv("ENGINE"); path != "" {
		d.Engine = exec.Command(path)
	}
	state, ended, err := d.Run()
	note("daemon ends: %v, %v, %v", state, ended, err)
	if err != nil {
		os.Exit(noEngine)
	}
	if ended {
		EndAs(state)
	}
	os.Exit(0)
}

// engine is a program that signals end, as llama-server is one: a program in Go would unblock
// signals as it starts. It answers lines from a FIFO. "crash" and "exit" end it.
const engine = `
echo "engine $$" >>"$STORY"
echo loading
while :; do
	read -r line <"$STORY.in"
	case $line in
	crash) kill -SEGV $$ ;;
	exit) exit 3 ;;
	*) echo hello >"$STORY.out" ;;
	esac
done`

// ask asks the engine something, and returns the answer.
func ask(text string) string {
	in, err := os.OpenFile(os.Getenv("STORY")+".in", os.O_RDWR, 0)
	if err != nil {
		return err.Error()
	}
	defer in.Close()
	out, err := os.OpenFile(os.Getenv("STORY")+".out", os.O_RDWR, 0)
	if err != nil {
		return err.Error()
	}
	defer out.Close()
	fmt.Fprintln(in, text)
	answer := make([]byte, len("hello"))
	_ = out.SetReadDeadline(time.Now().Add(10 * time.Second))
	n, _ := io.ReadFull(out, answer)
	return string(answer[:n])
}

// tell gives the engine an order.
func tell(t *testing.T, order string) {
	in, err := os.OpenFile(os.Getenv("STORY")+".in", os.O_RDWR, 0)
	require.NoError(t, err)
	t.Cleanup(func() { in.Close() })
	fmt.Fprintln(in, order)
}

// trio are the three processes, as a program that starts the front sees them.
type trio struct {
	t      *testing.T
	front  *exec.Cmd
	output *os.File // the end from which the program reads
	daemon int
	engine int
	story  string
}

// start starts the three and waits until the engine runs.
func start(t *testing.T, env ...string) *trio {
	story := filepath.Join(t.TempDir(), "story")
	t.Setenv("STORY", story)
	require.NoError(t, unix.Mkfifo(story+".in", 0o600))
	require.NoError(t, unix.Mkfifo(story+".out", 0o600))
	read, write, err := os.Pipe()
	require.NoError(t, err)
	p := &trio{t: t, front: self("front"), output: read, story: story}
	p.front.Env = append(p.front.Env, env...)
	p.front.Stdout, p.front.Stderr = write, write
	p.front.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, p.front.Start())
	write.Close()
	t.Cleanup(func() {
		_ = p.front.Process.Kill()
		_ = p.front.Wait()
		_ = unix.Kill(p.daemon, unix.SIGKILL)
		read.Close()
		p.gone()
	})
	b := make([]byte, len("loading\n"))
	_, err = io.ReadFull(read, b)
	require.NoError(t, err)
	for p.engine == 0 {
		for _, line := range p.lines() {
			_, _ = fmt.Sscanf(line, "engine %d", &p.engine)
			_, _ = fmt.Sscanf(line, "daemon %d", &p.daemon)
		}
		runtime.Gosched()
	}
	return p
}

func (p *trio) lines() []string {
	b, err := os.ReadFile(p.story)
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// gone waits until the daemon and the engine have ended.
func (p *trio) gone() {
	for _, pid := range []int{p.daemon, p.engine} {
		for pid > 0 && running(pid) {
			runtime.Gosched()
		}
	}
}

// running reports whether a process exists and is no zombie.
func running(pid int) bool {
	stat, err := proc.Read(pid)
	return err == nil && !stat.Ended()
}

// flushed requires that the daemon flushed while the engine still answered, and that a
// program that reads the output to its end waited for that.
func (p *trio) flushed() {
	p.t.Helper()
	_, err := io.Copy(io.Discard, p.output)
	require.NoError(p.t, err)
	require.Contains(p.t, p.lines(), `flush, the engine answers "hello"`)
	p.gone()
}

func (p *trio) wait() syscall.WaitStatus {
	_ = p.front.Wait()
	return p.front.ProcessState.Sys().(syscall.WaitStatus)
}

func TestTheFrontIsKilled(t *testing.T) {
	p := start(t)
	require.NoError(t, p.front.Process.Kill())
	p.flushed()
}

// TestEverybodyIsAskedToEnd, as a service manager does.
func TestEverybodyIsAskedToEnd(t *testing.T) {
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, syscall.SIGHUP) // nohup may run this test, and a signal that is heard is not ignored by children
	defer signal.Stop(heard)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		p := start(t)
		for _, pid := range []int{p.engine, p.daemon, p.front.Process.Pid} {
			require.NoError(t, unix.Kill(pid, sig))
		}
		p.flushed()
		require.Equal(t, 0, p.wait().ExitStatus())
	}
}

// TestNohup: processes that were started with SIGHUP ignored go on.
func TestNohup(t *testing.T) {
	signal.Ignore(syscall.SIGHUP)
	p := start(t)
	signal.Reset(syscall.SIGHUP)
	for _, pid := range []int{p.engine, p.daemon, p.front.Process.Pid} {
		require.NoError(t, unix.Kill(pid, unix.SIGHUP))
	}
	tell(t, "exit")
	require.Equal(t, 3, p.wait().ExitStatus())
	p.gone()
}

func TestTheFrontIsAskedToEnd(t *testing.T) {
	p := start(t)
	require.NoError(t, p.front.Process.Signal(syscall.SIGTERM))
	p.flushed()
	require.Equal(t, 0, p.wait().ExitStatus())
}

// TestTheProgramDies: nobody reads the output any more.
func TestTheProgramDies(t *testing.T) {
	p := start(t)
	p.output.Close()
	require.Equal(t, 0, p.wait().ExitStatus())
	p.gone()
	require.Contains(t, p.lines(), `flush, the engine answers "hello"`)
}

func TestTheEngineEnds(t *testing.T) {
	p := start(t)
	tell(t, "crash")
	require.Equal(t, syscall.SIGSEGV, p.wait().Signal())
	p.gone()

	p = start(t)
	require.NoError(t, unix.Kill(p.engine, unix.SIGKILL))
	require.Equal(t, syscall.SIGKILL, p.wait().Signal())
	p.gone()
}

// TestTheDaemonDies: no engine stays behind, and the front reports a failure.
func TestTheDaemonDies(t *testing.T) {
	p := start(t)
	require.NoError(t, unix.Kill(p.daemon, unix.SIGKILL))
	require.Equal(t, syscall.SIGKILL, p.wait().Signal())
	p.gone()
	_, err := io.Copy(io.Discard, p.output)
	require.NoError(t, err)
}

// TestAFlushThatHangs ends with the engine.
func TestAFlushThatHangs(t *testing.T) {
	p := start(t, "HANG=1")
	require.NoError(t, p.front.Process.Kill())
	_, err := io.Copy(io.Discard, p.output)
	require.NoError(t, err)
	p.gone()
}

// TestAnEngineThatIsNotThere: the daemon says so, and ends.
func TestAnEngineThatIsNotThere(t *testing.T) {
	t.Setenv("STORY", filepath.Join(t.TempDir(), "story"))
	p := self("front")
	p.Env = append(p.Env, "ENGINE=/no/such/llama-server")
	require.Error(t, p.Run())
	require.Equal(t, noEngine, p.ProcessState.ExitCode())
	b, err := os.ReadFile(os.Getenv("STORY"))
	require.NoError(t, err)
	require.Contains(t, string(b), "start /no/such/llama-server: ")
}
