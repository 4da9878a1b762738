//go:build unix

package digests

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

func stateOf(f *os.File) (State, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return State{}, fmt.Errorf("look at %s: %w", f.Name(), err)
	}
	return State{
		// the types of the fields differ between systems
		Device: uint64(st.Dev), Inode: uint64(st.Ino), Size: st.Size,
		Modified: unix.TimespecToNsec(st.Mtim), Changed: unix.TimespecToNsec(st.Ctim),
	}, nil
}
