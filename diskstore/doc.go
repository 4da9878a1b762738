/*
Package diskstore keeps the KV cache of language models in page files.

# Basics

A page is the K and V rows of a fixed number of consecutive tokens (256 unless Options set another number),
for all layers, in one immutable file. Its name is a chain key: a hash of the previous page's key and of the
page's own tokens. So a sequence of tokens leads from page to page without an index, and two sequences share
the pages of their common prefix. The first page's parent, the fingerprint, separates pages that must not be
mixed: models, engines, numerics, tenants. A shorter last page is a tail. A tail is matched by longest
common prefix, and so is a full page that shares only its beginning with the tokens asked for: branches,
empty files named by prefixes, lead to both.

	store, err := diskstore.Open(ctx, diskstore.Options{
		Fingerprint: fingerprint,
		Local:       diskstore.TierConfig{Root: root, BudgetBytes: 20 << 30},
	})
	...
	err = store.Put(ctx, &page)
	...
	for _, ref := range store.Find(ctx, diskstore.Prompt{Tokens: tokens}).Exact {
		layout, err := pagefile.NewLayout(sections, ref.Stored)
		...
		buf := make([]byte, layout.Size())
		err = store.Read(ctx, ref, tokens[ref.Start:ref.End()], layout, diskstore.Into{Rows: buf})
		...
	}

The package knows no engine: tokens are int32, rows are bytes.

# Rooms

	pagefile    the bytes of one page file
	tier        the contract of a place that holds pages
	tier/dir    a tier in a directory
	tier/guard  a tier with time limits
	ledger      the bytes used and reserved below a root
	inspect     offline work for people, which needs no Store

Packages below internal have their inputs each, and none has the store. docs/architecture.md lists them.

Files of this package, by their purpose:

	store.go, options.go      a store, how its parts are put together, its settings
	level.go                  one of its tiers: its files, its ledger, its room
	find.go, chain.go         look-up of prompts, of tails, and of pages that only begin like a prompt
	read.go                   pages out of the tiers, and what a read touches
	ram.go                    the copies in memory
	put.go                    pages into the local tier, and what a fingerprint stands for
	absent.go                 why a page is not there
	reclaim.go                unused fingerprints, that people remove
	recent.go, ahead.go       recent pages, and reading before somebody asks
	root_ops.go, vectors.go   the store for tools; vectors beside pages, by which they search
	stats.go                  its numbers

A Store looks up, reads and puts pages, and puts its parts together. A lookup and a reader see the part that
they need of it; a level does not know its store. To add a tier of another kind, such as an object store,
read the documentation of package tier.

Pages are in a local tier. With a remote tier (a mounted directory or Options.RemoteTier), pages move down
when the local tier is over its budget: first those that Options.Obsolete picks, then those that are least
likely to be used again soon (Options.Eviction), and a page before the pages that it continues. With
Options.ThroughPerDay pages are also copied down behind Put, the first ones of a chain first, unless the remote
tier has them. A page read from the remote tier is copied up again.
Several processes may share either root, without a daemon. The directory is the index, and file times are the
recency. Times alone order files: a page's recency is later than that of every page that continues it, and its
last digit tells how often the page was used again. What became of pages is counted in usage.json.

With Options.Cold a page becomes lossy when it moves down: the remote tier gets the page with K and V in a
lossy encoding, instead of an exact copy. The local file is never changed, and a lossy page is never made
lossy again. A lossy page has the key of the exact one and a fingerprint of its own, so that no look-up for
exact pages finds it. Prompt.Forms asks for chains of both kinds.

Budgets limit a recorded figure, usage.json, that may be too high and is never too low: processes claim room
in it before they write. So Open need not count, and a million files are counted in the background. OpenRoot
lets tools count and collect the pages of all fingerprints below a root. Package inspect checks and repairs
pages, and exports and imports a conversation as one archive.

With Options.RAM a store also keeps decoded pages in memory, as copies of files in a tier: the pages put or
read last. Look-ups go from memory to the local tier to the remote one. Processes of one server divide the
memory's budget.

Concurrent Reads of one page share one read: the page is read, checked and decoded once, and copied for the
others. Into.Use gets a page in pieces, which are shared only where the page comes into memory as a whole.
After a start, Recent.ReadAhead reads the most recently used pages into memory, so that the first Reads come
from memory.

# Guarantees

  - After Put returned nil the page survives a power cut. A visible page is whole, even if the process was
    killed or the power failed at any moment.
  - A page that moves down leaves the local tier only when the remote tier has a durable copy, every byte of
    which this process has written or checked: just now, or within the last 24 hours if the file's length,
    time and header are the same as then. With Options.Cold the same holds for the lossy file in place of
    the copy; each of its lossy sections was decoded before it was written.
  - Read returns exactly the bytes that were put, for exactly the requested tokens; of a Lossy Ref, the
    bytes that the encoding gives back. Every byte of a file is checked; any flipped bit and any truncation
    is found. A file that looks damaged is read once more past this machine's cache. A damaged file goes to
    quarantine and is never read again. Reading deletes no file. One process moves at most 16 files an hour
    of the local tier to quarantine and 4 of the remote tier, there only one for each 8 files found good
    after the first. Other damaged files stay in their place and count as not stored in that process for an
    hour. The next Put replaces such files of the local tier; a copy in the remote tier is not overwritten.
  - A failure of a tier costs at most pages that must be computed again. Find has no error. A remote tier
    that hangs adds at most Options.RemoteTimeout to a chain, and after a few times nothing.
  - Memory is bounded by the caller's layout and the file's length, for any content of a file: reading a
    page takes at most twice the page's size, the caller's buffer included, and the header of a file in its
    place at most twice the file's size. (Pages kept by Options.RAM have a budget of their own.)
  - Making a page lossy takes at most the memory of the page's rows and two sections in addition, and the
    rows are at most 8 times as long as the file.
  - Goroutines are bounded, even while a mount hangs; without work there are none. Close takes at most 5 s.
  - A page whose file was deleted is served from memory for at most 10 s longer, and stays in memory for
    little more than a minute.
  - Memory for decoded pages never exceeds its budget, bookkeeping included, with two exceptions: for 2 s
    after one more process of the same server begins to take its part, and for pages with readers while the
    budget shrinks.
  - The disk space of files never exceeds a budget: pages, tails, temporary and quarantined files, of all
    fingerprints below the root and all processes that open the root with that budget, even if processes
    were killed or the power failed. Put waits at most 5 s for room. Eviction never takes the pages that the
    new one continues; when only such pages are left, Put fails.
  - All processes that open the local tier with a limit of Options.WritePerDay together write at most as
    many bytes to it in a UTC day.
  - At most 1024 names of pages wait for Options.ThroughPerDay, and one page is copied at a time. What a
    process leaves, the next one with the fingerprint copies, of the latest 1024 files. A copy whose page
    has left the local tier meanwhile is removed.
  - Open takes as long with a million pages as with none.
  - Directories have mode 0700 and files 0600. A root that is a symbolic link, belongs to another user, or
    is writable by other users is refused, at Open and as long as the store is open. Links, FIFOs and
    devices in a page's place are neither followed nor opened, and never block an operation; links in the
    place of a directory below a root are not followed.

# Syncs

A page's content is always synced before its name is visible: without that sync a power cut would leave
files that look whole and are not, and each would cost a read before it is computed again. The sync of the
name afterwards, one directory for a page and three for a tail, takes 5 to 7 ms on an SSD with ext4, for a
page of any size. A page is stored once in 256 tokens, and no request waits for it.

# Caveats

  - Pages hold prompts in another form. They are not encrypted.
  - Checks find accidents, not forgeries: a user who can write below a root can write a page with good
    checksums. So only its owner may write to a root.
  - The remote tier must be a filesystem with atomic rename, or a tier in Options.RemoteTier that passes
    tiertest.Contract. Where the filesystem's flock may not reach other machines (by the type and the
    options of its mount, see vfs.Locking) one machine at a time writes to the tier and collects it; other
    machines read, and get tier.ErrNotShared. The next process of the same running system removes the files
    of a dead process in the remote tier. Other machines, and this machine after a restart, keep the
    temporary files of a dead process for an hour after its last sign of life, and its lock file and its
    claim for a day more, or on Linux only for 5 minutes if the same machine has restarted since. In a local
    tier on a disk the next process removes all of them, also after a restart.
  - Only the remote tier is isolated. A local disk that hangs, hangs Put, Find and Read.
  - A budget counts the disk space that the filesystem reports for each file. Not counted are directories,
    branches, which are empty files, and manifests, locks and usage.json, a few KiB for each fingerprint,
    and the list of pages that left the tier, 512 KiB at most. Filesystems that allocate blocks after a sync
    (ZFS) report less for some seconds.
  - Without a budget the free 5 % are checked between two pages: several processes may go below by a page
    each.
  - A filesystem may stay full although pages are deleted: where snapshots hold their space, or other data
    uses up a quota. Then pages are deleted for a new one after a minute at the earliest, and after twice
    the time each time, up to a day. The others stay readable.
  - Without flock, processes may lose each other's claims, and exceed the budget by up to 256 MiB each until
    files are counted. A process that died keeps its claim for a day there.
  - Vectors (Root.PutVectors) are removed after their page: those of a process that dies between both are
    removed by the next listing. They may be lost in a power cut.
  - Files that are deleted by hand count until the next count. While pages are written, a count is due after
    a minute, ten minutes in the remote tier, or a hundred times the duration of a count.
  - A branch is made after its page, and synced only for a tail. A page whose branch is lost is found by all
    of its tokens alone, until its next Put.
  - At most 200 pages or tails behind one page that share all but the last thirty-second part have branches.
    A further page is found by a prompt that has all of its tokens; a further tail is not found.
  - The order of eviction suffers, and nothing else, when file times are lost in a power cut or by copying, when
    a clock is wrong, and, for one of some thousand chains, when a chain's pages are on both sides of the border
    of two classes of idle times: a page may leave then before one that continues it. A page with a time more than a minute ahead of this machine's clock and the
    filesystem's counts as used at the moment at which a collection that needs room finds it.
  - Reclaim and GC delete a file because of its age alone only if the file is that old by this machine's
    clock and by the filesystem's. A file from the future is not deleted until a collection has found it and
    that time has passed again. Files stored by a host whose clock is behind are as old as that clock says.
  - A page in Into.Placed keeps its disk space, outside every budget, until its file is closed, even after
    the page was evicted. Later reads of that file are not checked. Windows does not remove an open file.
  - Up to 16 quarantined files per tier are kept while there is space; reads move no file to a full
    quarantine. A directory in a page's place is moved even to a full quarantine, with its content, and
    stays while it is not empty.
  - Hits are recorded every 5 s, and by Flush and Close; unrecorded hits of a process that dies are lost.
  - Options.Cold makes only pages of the store's own fingerprint lossy. Pages of other models move down
    exact, as do all pages in Root.GC. A page moves down exact where the remote tier has it exact, and where
    a lossy file would take as much disk space.
  - While the remote tier does not answer, Found.Mixed may have a lossy page of the local tier that the
    remote one has exact.
  - Two machines that compute the same pages at the same moment may both send them. The bytes of
    Options.ThroughPerDay are those recorded: each process may exceed it by 256 MiB. Where one of several
    processes with a fingerprint is killed, pages that waited there may reach the remote tier only when they
    leave the local one.
  - A page that cannot be demoted because the remote tier is down is deleted when its space is needed,
    together with the next pages up to 1/64 of the budget.
*/
package diskstore
