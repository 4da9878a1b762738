package nfstest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kvtier/kvtier/internal/nfstest/wire"
)

const (
	// memoryMiB is the memory of a machine. The first filesystem takes 60 MiB of it.
	memoryMiB = 384

	// translatedMiB bounds QEMU's memory for translated code.
	translatedMiB = 96

	// bootLimit bounds the time from the start of QEMU to the first answer of the machine.
	bootLimit = 15 * time.Minute
)

// machineConfig describes one machine.
type machineConfig struct {
	name    string
	dir     string // for sockets and logs
	kernel  string
	initrd  string
	disk    string // path of a disk's image; "" for none
	number  int    // last part of the address
	clock   time.Duration
	network string // path of the hub's socket
}

// machine is one running virtual machine.
type machine struct {
	machineConfig
	cmd      *exec.Cmd
	ended    chan struct{} // closed when QEMU has ended
	listener net.Listener
	output   *os.File // of all commands, for a person who watches

	mu      sync.Mutex
	conn    net.Conn
	next    int
	running map[int]*process
}

// address returns the machine's IPv4 address.
func (c machineConfig) address() string { return fmt.Sprintf("10.77.0.%d", c.number) }

// args returns the arguments of QEMU.
func (c machineConfig) args(channel string) []string {
	// On a busy machine emulated timers are late, and the kernel must not take them for broken.
	line := strings.Join([]string{
		"console=ttyS0", "quiet", "panic=-1", "no_timer_check", "nowatchdog", "rcupdate.rcu_cpu_stall_suppress=1", "random.trust_cpu=on", "mitigations=off",
		wire.ParamName + c.name, wire.ParamAddress + c.address(), fmt.Sprintf("%s%d", wire.ParamClock, int(c.clock.Seconds())),
	}, " ")
	args := []string{
		"-nodefaults", "-display", "none", "-no-reboot", "-machine", "pc", "-cpu", "max", "-smp", "1",
		"-accel", fmt.Sprintf("tcg,tb-size=%d", translatedMiB), "-m", fmt.Sprint(memoryMiB),
		"-kernel", c.kernel, "-initrd", c.initrd, "-append", line,
		"-serial", "file:" + filepath.Join(c.dir, c.name+".log"),
		"-device", "virtio-rng-pci",
		"-netdev", "stream,id=net,server=off,addr.type=unix,addr.path=" + c.network,
		"-device", fmt.Sprintf("virtio-net-pci,netdev=net,mac=52:54:00:77:00:%02x,romfile=", c.number),
		"-chardev", "socket,id=channel,server=off,path=" + channel,
		"-device", "virtio-serial-pci", "-device", "virtserialport,chardev=channel",
	}
	if c.disk != "" {
		args = append(args, "-drive", "if=virtio,format=raw,cache=writeback,file="+c.disk)
	}
	return args
}

// start boots a machine and returns when it answers.
func start(ctx context.Context, c machineConfig) (*machine, error) {
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	channel := filepath.Join(c.dir, c.name+".channel")
	l, err := net.Listen("unix", channel)
	if err != nil {
		return nil, fmt.Errorf("start machine %s: %w", c.name, err)
	}
	m := &machine{machineConfig: c, listener: l, ended: make(chan struct{}), running: make(map[int]*process)}
	m.cmd = exec.Command("qemu-system-x86_64", c.args(channel)...)
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := os.Create(filepath.Join(c.dir, c.name+".qemu"))
	if err != nil {
		l.Close()
		return nil, err
	}
	m.cmd.Stdout, m.cmd.Stderr = out, out
	err = startHere(m.cmd)
	out.Close()
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("start machine %s; scripts/deps nfs installs QEMU: %w", c.name, err)
	}
	go func() {
		_ = m.cmd.Wait()
		close(m.ended)
	}()
	if err := m.meet(ctx); err != nil {
		m.kill()
		return nil, fmt.Errorf("start machine %s; its log is %s: %w", c.name, filepath.Join(c.dir, c.name+".log"), err)
	}
	return m, nil
}

// meet waits for the connection of QEMU and the first answer from inside.
func (m *machine) meet(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { m.listener.Close() })
	defer stop()
	go func() {
		<-m.ended
		m.listener.Close()
	}()
	conn, err := m.listener.Accept()
	if err != nil {
		return errors.Join(ctx.Err(), err)
	}
	m.conn = conn
	if m.output, err = os.OpenFile(filepath.Join(m.dir, m.name+".out"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		conn.Close()
		return err
	}
	go m.receive()
	// A request that is sent before the machine listens is lost.
	stopConn := context.AfterFunc(ctx, func() { conn.Close() })
	defer stopConn()
	return m.awaitHello(ctx)
}

// awaitHello waits for the reply with ID 0, which the machine sends when it listens.
func (m *machine) awaitHello(ctx context.Context) error {
	hello := m.process(0)
	select {
	case <-hello.done:
		return hello.err
	case <-m.ended:
		return errors.New("QEMU has ended")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// process returns the process of a request.
func (m *machine) process(id int) *process {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.running[id]
	if p == nil {
		p = &process{m: m, id: id, done: make(chan struct{}), grown: make(chan struct{}, 1)}
		m.running[id] = p
	}
	return p
}

// receive takes replies until the machine ends.
func (m *machine) receive() {
	defer m.abandon()
	defer m.output.Close()
	d := json.NewDecoder(bufio.NewReader(m.conn))
	for {
		var r wire.Reply
		if err := d.Decode(&r); err != nil {
			return
		}
		_, _ = m.output.WriteString(r.Output)
		m.process(r.ID).take(r)
		if r.Done && r.ID != 0 {
			m.mu.Lock()
			delete(m.running, r.ID)
			m.mu.Unlock()
		}
	}
}

// abandon ends all commands of a machine that has ended.
func (m *machine) abandon() {
	m.mu.Lock()
	all := m.running
	m.running = make(map[int]*process)
	m.mu.Unlock()
	for _, p := range all {
		p.take(wire.Reply{Done: true, Code: -1, Err: "machine " + m.name + " has ended"})
	}
}

// lives reports whether a machine runs.
func (m *machine) lives() bool {
	select {
	case <-m.ended:
		return false
	default:
		return true
	}
}

// kill ends a machine as a power cut does.
func (m *machine) kill() {
	_ = syscall.Kill(-m.cmd.Process.Pid, syscall.SIGKILL)
	<-m.ended
	m.listener.Close()
	if m.conn != nil {
		m.conn.Close()
	}
}

// send sends a request.
func (m *machine) send(r wire.Request) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	_, err = m.conn.Write(append(line, '\n'))
	return err
}

// begin starts a command in the machine.
func (m *machine) begin(r wire.Request) (*process, error) {
	m.mu.Lock()
	m.next++
	r.ID = m.next
	m.mu.Unlock()
	p := m.process(r.ID)
	p.what = strings.Join(r.Args, " ")
	if err := m.send(r); err != nil {
		return nil, fmt.Errorf("run %s on machine %s: %w", p.what, m.name, err)
	}
	return p, nil
}

// process is a command that runs in a machine.
type process struct {
	m    *machine
	id   int
	what string
	done chan struct{}

	mu     sync.Mutex
	output strings.Builder
	code   int
	err    error
	grown  chan struct{} // has an element after new output
}

// take takes a reply.
func (p *process) take(r wire.Reply) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.output.WriteString(r.Output)
	select {
	case p.grown <- struct{}{}:
	default:
	}
	if !r.Done {
		return
	}
	select {
	case <-p.done:
		return
	default:
	}
	p.code = r.Code
	switch {
	case r.Err != "":
		p.err = errors.New(r.Err)
	case r.Code != 0:
		p.err = fmt.Errorf("exit status %d", r.Code)
	}
	close(p.done)
}

// text returns the output so far.
func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

// wait waits for the end of a command and returns its output.
func (p *process) wait(ctx context.Context) (string, error) {
	select {
	case <-p.done:
	case <-ctx.Done():
		_ = p.kill()
		return p.text(), fmt.Errorf("run %s on machine %s: %w; output so far: %s", p.what, p.m.name, ctx.Err(), p.text())
	}
	if p.err != nil {
		return p.text(), fmt.Errorf("run %s on machine %s: %w: %s", p.what, p.m.name, p.err, p.text())
	}
	return p.text(), nil
}

// until waits for output of which a condition holds, or for the end of the command.
func (p *process) until(ctx context.Context, holds func(text string) bool) error {
	for {
		if holds(p.text()) {
			return nil
		}
		select {
		case <-p.grown:
		case <-p.done:
			if !holds(p.text()) {
				return fmt.Errorf("%s on machine %s has ended (%v): %s", p.what, p.m.name, p.err, p.text())
			}
			return nil
		case <-ctx.Done():
			return fmt.Errorf("wait for %s on machine %s: %w; output so far: %s", p.what, p.m.name, ctx.Err(), p.text())
		}
	}
}

// kill kills a command.
func (p *process) kill() error { return p.m.send(wire.Request{Kill: p.id}) }

// starters start processes from a thread that never ends: the kernel kills a process with
// Pdeathsig when the thread that started it ends.
var starters = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for do := range work {
			do()
		}
	}()
	return work
})

// startHere starts a command that ends with this process.
func startHere(cmd *exec.Cmd) error {
	result := make(chan error)
	starters() <- func() { result <- cmd.Start() }
	return <-result
}
