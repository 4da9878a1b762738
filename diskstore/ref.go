package diskstore

import "github.com/kvtier/kvtier/diskstore/pagefile"

// Ref is a stored page as Chain found it. It may go stale at any time: Read
// then returns ErrNotFound.
type Ref struct {
	Key    pagefile.Key
	Parent pagefile.Key
	Start  uint32 // position of the page's first token
	Tokens int    // rows usable: for a tail the prefix it shares with the prompt
	Stored int    // tokens in the file; Read wants a Layout of this many
	Tail   bool
	Tier   string // RAM, Local or Remote, where it was found
	Bytes  int64  // size of the file

	used int64 // recency when found, in Unix nanoseconds
	at   int64 // when its chain counts as used if it is read; 0 for when that is
}
