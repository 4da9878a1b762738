package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/kvtier/kvtier/internal/nfstest/wire"
)

// channel is the connection to the test.
type channel struct {
	mu      sync.Mutex
	out     *json.Encoder
	running map[int]*exec.Cmd
}

// serve runs the commands of requests until the channel ends.
func serve() error {
	port, err := openPort()
	if err != nil {
		return err
	}
	c := &channel{out: json.NewEncoder(port), running: make(map[int]*exec.Cmd)}
	c.reply(wire.Reply{Done: true})
	d := json.NewDecoder(bufio.NewReader(port))
	for {
		var r wire.Request
		if err := d.Decode(&r); err != nil {
			return fmt.Errorf("read a request: %w", err)
		}
		if r.Kill != 0 {
			c.kill(r.Kill)
			continue
		}
		go c.run(r)
	}
}

// openPort opens the channel's device, which the kernel makes some time after the module has been
// loaded.
func openPort() (*os.File, error) {
	const pause, tries = 20 * time.Millisecond, 3000
	for i := 0; ; i++ {
		found, err := filepath.Glob(wire.Port)
		switch {
		case err != nil:
			return nil, err
		case len(found) == 1:
			return os.OpenFile(found[0], os.O_RDWR, 0)
		case i == tries:
			return nil, fmt.Errorf("%d devices are %s, want 1", len(found), wire.Port)
		}
		time.Sleep(pause)
	}
}

func (c *channel) reply(r wire.Reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.out.Encode(r)
}

// output sends the output of a command.
type output struct {
	c  *channel
	id int
}

func (o output) Write(p []byte) (int, error) {
	o.c.reply(wire.Reply{ID: o.id, Output: string(p)})
	return len(p), nil
}

// run runs a command to its end.
func (c *channel) run(r wire.Request) {
	cmd := exec.Command(r.Args[0], r.Args[1:]...)
	cmd.Env = append(os.Environ(), r.Env...)
	cmd.Dir = "/tmp"
	cmd.Stdout = output{c, r.ID}
	cmd.Stderr = cmd.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		c.reply(wire.Reply{ID: r.ID, Done: true, Code: -1, Err: err.Error()})
		return
	}
	c.mu.Lock()
	c.running[r.ID] = cmd
	c.mu.Unlock()
	err := cmd.Wait()
	c.mu.Lock()
	delete(c.running, r.ID)
	c.mu.Unlock()
	done := wire.Reply{ID: r.ID, Done: true, Code: cmd.ProcessState.ExitCode()}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		done.Err = err.Error()
	}
	c.reply(done)
}

// kill kills a command and the commands that it has started.
func (c *channel) kill(id int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cmd := c.running[id]; cmd != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
}
