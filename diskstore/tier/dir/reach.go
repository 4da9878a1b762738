package dir

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/diskstore/vfs"
)

// reach tells how far locks reach in a temporary directory, and which processes they can show to be
// dead. Callers hold tempDir.mu.
type reach struct {
	in      *root
	dir     string
	locking *vfs.Locking // nil until it was learned
}

const lockRemedy = "mount it with NFS 4 and without local_lock or nolock, or give each machine a directory of its own (OLLAMA_KV_INSTANCE_ID for the local one)"

// foreign reports whether other machines may use the directory as well.
func (l *reach) foreign() bool {
	return l.in.shared || l.locking != nil && l.locking.Reach != vfs.ReachDisk
}

// lockless reports whether two machines may hold the same lock here at the same time.
func (l *reach) lockless() bool {
	return l.in.shared && l.locking != nil && l.locking.Reach != vfs.ReachAll
}

// learnLocks finds out, once, how far locks reach here.
func (l *reach) learnLocks() error {
	if l.locking != nil {
		return nil
	}
	locking, err := l.in.FS.Locking(l.dir)
	if err != nil && errors.Is(classify(err), tier.ErrNotFound) {
		return err
	}
	if err != nil {
		locking.Reach, locking.Why = vfs.ReachHost, err.Error()
	}
	l.locking = &locking
	if locking.Reach == vfs.ReachHost && l.in.watch.log != nil {
		l.in.watch.log.Warn("kv tier's locks do not reach other machines, or it cannot be told: only one may write here",
			"filesystem", locking.Why, "remedy", lockRemedy)
	}
	return nil
}

func (l *reach) notShared() error {
	return fmt.Errorf("another machine writes below %s, and locks do not keep the two apart; %s: %w", l.in.Root, lockRemedy, tier.ErrNotShared)
}

// trusts reports whether a free lock of this id proves that its process is dead.
func (l *reach) trusts(id string) bool { return !l.foreign() || l.sameSystem(id) }

// sameSystem reports whether an id was chosen by a process of this running system that uses the same mount.
func (l *reach) sameSystem(id string) bool {
	if l.locking == nil {
		return false
	}
	fields := strings.Split(id, ".")
	return len(fields) >= 2 && fields[len(fields)-2] == l.locking.Host
}

// system is the part of an id that names the machine and the running system.
func (l *reach) system() string {
	if l.locking.Machine == "" {
		return l.locking.Host
	}
	return l.locking.Machine + "." + l.locking.Host
}

// ended reports whether a process of this machine chose an id before the machine's last restart: the
// id has the machine's name, and the lock file is unchanged since this system started. A running copy
// of the machine has the same name, and beats. This allows the machine to write in the same root, and
// not to remove the files of the id.
func (l *reach) ended(id string, idle time.Duration) bool {
	fields := strings.Split(id, ".")
	if len(fields) < 3 || l.locking.Machine == "" || fields[len(fields)-3] != l.locking.Machine {
		return false
	}
	now, err := l.in.FS.Locking(l.dir) // reads the present Up
	return err == nil && idle > now.Up
}

// lockOver reports whether a lock file, unchanged for idle, no longer protects any process. Those from
// before this machine's restart expire early, because their claims would stay in the ledger for one day
// more. A sleeping copy of the machine notices before its next write, and makes a new claim.
func (l *reach) lockOver(id string, idle time.Duration) bool {
	return idle > lockAge || idle > beatAge && l.ended(id, idle)
}
