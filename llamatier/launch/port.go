package launch

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"os/exec"
	"regexp"
	"strconv"
	"time"
)

// oldPort is the port of llama-server, up to b11520, where nothing names one. Later ones have 9931.
const oldPort = 8080

// Bounds of a look at llama-server's help.
const (
	helpTimeout = 5 * time.Second
	helpGrace   = 100 * time.Millisecond // for others who hold its output
	helpBytes   = 1 << 20
)

// Address returns the host and the port on which llama-server is asked to listen. Where nothing
// names a port, it is the default of the llama-server real.
func (c Command) Address(real string) (name string, number int, err error) {
	name = "127.0.0.1"
	if v, ok := c.value(host); ok {
		name = v
	}
	if v, ok := c.value(port); ok {
		number, err = strconv.Atoi(v)
		return name, number, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), helpTimeout)
	defer cancel()
	return name, defaultPort(ctx, real, c.Environ), nil
}

// defaultPort asks a llama-server for the port of which its help says that it is the default.
func defaultPort(ctx context.Context, real string, environ []string) int {
	var help limited
	cmd := exec.CommandContext(ctx, real, "--help")
	cmd.Env, cmd.Stdout, cmd.WaitDelay = environ, &help, helpGrace
	_ = cmd.Run() // what it has printed by then counts
	if m := portDefault.FindStringSubmatch(help.text.String()); m != nil {
		number, _ := strconv.Atoi(m[1]) // the pattern has digits only
		return cmp.Or(number, oldPort)
	}
	return oldPort
}

// limited refuses text beyond helpBytes, which ends the program that writes it.
type limited struct{ text bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if l.text.Len()+len(p) > helpBytes {
		return 0, io.ErrShortWrite
	}
	return l.text.Write(p)
}

// portDefault matches the default of --port in a help, before the next option.
var portDefault = regexp.MustCompile(`(?m)^--port\b(?:[^\n]|\n+[^-\n])*?default:\s+([0-9]{1,5})\b`)
