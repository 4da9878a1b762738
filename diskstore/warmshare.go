package diskstore

import (
	"crypto/sha256"
	"encoding/hex"
)

// A server's runners divide its budget of memory evenly. Each has a lock file in
// the local root's temporary directory anyhow; with a budget its name begins with
// the server's, so that counting them tells how many there are. A runner that
// dies lets go of its lock, and whoever counts next removes the file.

// serverPrefix is what the lock files of a server's runners begin with. Names of
// temporary files are cut at a hyphen, so there is none in it.
func serverPrefix(server string) string {
	sum := sha256.Sum256([]byte(server))
	return "warm." + hex.EncodeToString(sum[:8]) + "."
}

// shareWarm takes this runner's part of its server's budget. While it cannot be
// told how many runners there are nothing is kept: memory that was not granted
// may be somebody else's.
func (s *Store) shareWarm() {
	n, err := s.disk.Peers()
	s.warmHealth.note("share memory between runners", err)
	if err != nil {
		s.warm.setLimit(0)
		return
	}
	s.warm.setLimit(s.opt.RAM.BudgetBytes / int64(n))
}
