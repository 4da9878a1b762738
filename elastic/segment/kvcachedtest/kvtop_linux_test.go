//go:build cgo

package kvcachedtest

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/elastic"
	"github.com/kvtier/kvtier/elastic/segment"
)

// terminal makes a terminal of 200 columns: the side that a person has, and the program's.
func terminal(t *testing.T) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { person.Close() })
	conn, err := person.SyscallConn()
	require.NoError(t, err)
	var number int
	require.NoError(t, conn.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
		if err == nil {
			err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 60, Col: 200})
		}
	}))
	require.NoError(t, err)
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { program.Close() })
	return person, program
}

// topLine is a segment's line of numbers.
func topLine(limit, used, kept int64) string {
	return fmt.Sprintf("Prealloc: %s | Used: %s / %s (%.1f%%) | Free: %s", human(kept), human(used), human(limit),
		float64(used+kept)/float64(limit)*100, human(max(0, limit-used-kept)))
}

// TestKvtopShowsOurSegments, and ends when a person presses q.
func TestKvtopShowsOurSegments(t *testing.T) {
	p := newPool(t)
	person, program := terminal(t)
	cmd := python(t, "-m", kvtop, "--refresh", "0.01", p.name)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true, Setctty: true}
	start(t, cmd)
	require.NoError(t, program.Close())
	screen := bufio.NewReader(person)
	show := func(part string) {
		t.Helper()
		text, err := readUntil(screen, func(text []byte) bool { return strings.Contains(string(text), part) })
		require.NoError(t, err, "kvtop shows no %q: %q", part, text)
	}
	show("IPC: " + p.name)
	show(topLine(va, used, kept))
	require.NoError(t, segment.SetLimit(p.name, 100))
	require.ErrorIs(t, p.poll(), elastic.ErrInvalid, "less than a granule")
	p.require(va)
	_, err := person.Write([]byte("q"))
	require.NoError(t, err)
	_, err = readUntil(screen, func([]byte) bool { return false })
	require.Error(t, err, "a terminal that nobody has")
	require.NoError(t, cmd.Wait())
}
