package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/internal/nfstest/wire"
)

// boot prepares the machine and serves requests until the machine is killed.
func boot() error {
	for _, m := range []struct{ kind, at string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"},
	} {
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	_ = os.Chmod("/tmp", 0o1777)
	_ = os.Setenv("PATH", "/bin:/sbin") // for this program, which starts others
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	if err := loadModules(); err != nil {
		return err
	}
	name, address := param(line, wire.ParamName), param(line, wire.ParamAddress)
	if err := moveClock(param(line, wire.ParamClock)); err != nil {
		return err
	}
	if err := setNames(name); err != nil {
		return err
	}
	for _, command := range []string{
		"/bin/busybox --install -s /bin",
		"ip link set lo up",
		"ip addr add " + address + "/24 dev eth0",
		"ip link set eth0 up",
		"mkdir -p /run/rpc_pipefs /run/rpcbind /mnt/kv",
		"mount -t rpc_pipefs rpc_pipefs /run/rpc_pipefs",
	} {
		cmd := exec.Command("/bin/sh", "-c", command)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command, err, out)
		}
	}
	return serve()
}

// param returns the value of a parameter on the kernel's command line.
func param(line []byte, name string) string {
	for _, field := range strings.Fields(string(line)) {
		if value, ok := strings.CutPrefix(field, name); ok {
			return value
		}
	}
	return ""
}

// loadModules loads the modules in their order.
func loadModules() error {
	order, err := os.ReadFile("/modules/order")
	if err != nil {
		return err
	}
	for _, path := range strings.Fields(string(order)) {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && err != unix.EEXIST {
			return fmt.Errorf("load module %s: %w", path, err)
		}
		_ = os.Remove(path) // its memory is needed
	}
	return nil
}

// moveClock moves the clock ahead.
func moveClock(seconds string) error {
	n, err := strconv.Atoi(seconds)
	if err != nil || n == 0 {
		return err
	}
	return clock([]string{strconv.FormatInt(time.Now().Unix()+int64(n), 10)})
}

// clock sets the clock to args: seconds since 1970.
func clock(args []string) error {
	seconds, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil {
		return err
	}
	if err := unix.Settimeofday(&unix.Timeval{Sec: seconds}); err != nil {
		return fmt.Errorf("set the clock: %w", err)
	}
	return nil
}

// setNames gives the machine its name and an id that stays the same after a restart.
func setNames(name string) error {
	if err := unix.Sethostname([]byte(name)); err != nil {
		return err
	}
	sum := sha256.Sum256([]byte("machine " + name))
	return os.WriteFile("/etc/machine-id", []byte(hex.EncodeToString(sum[:16])+"\n"), 0o644)
}
