/*
Package diskstore keeps the KV cache of language models in page files.

# Basics

A page is the K and V rows of a fixed number of consecutive tokens (256 unless
Options say otherwise), for all layers, in one immutable file. Its name is a
chain key: a hash of the key of the page before it and of its own tokens. So a
sequence of tokens leads from page to page with no index, two sequences share
the pages of their common prefix, and the first page's parent, the fingerprint,
separates everything that must not meet: models, engines, numerics, tenants. A
shorter last page is a tail. It is found through its parent and matched by
longest common prefix.

	store, err := diskstore.Open(ctx, diskstore.Options{
		Fingerprint: fingerprint,
		Local:       diskstore.TierConfig{Root: root, BudgetBytes: 20 << 30},
	})
	...
	err = store.Put(ctx, &page)
	...
	for _, ref := range store.Chain(ctx, tokens, nil) {
		layout, err := pagefile.NewLayout(sections, ref.Stored)
		...
		buf := make([]byte, layout.Size())
		err = store.Read(ctx, ref, tokens[ref.Start:int(ref.Start)+ref.Tokens], layout, buf)
		...
	}

The package knows no engine: tokens are int32, rows are bytes.

# Rooms

	pagefile    the bytes of one page file
	tier        the contract of a place that holds pages
	tier/dir    a tier in a directory
	tier/guard  a tier that answers in time
	ledger      the room that is taken below a root, and by which process
	inspect     offline work for people, which needs no Store

This package is the store itself: it looks up, reads and puts pages, collects tiers, and moves
pages between them. To add a tier of another kind, such as an object store, implement tier.Tier
and give it to Options.RemoteTier.

Pages live in a local tier and, when there is one, move down to a remote tier (a
mounted directory) when the local one is over its budget: the least recently
used first, and always a page before those it continues. A page read from the
remote tier is copied up again. Several processes may share either root, with no
daemon. The directory is the index and file times are the recency, which orders
files by itself: a page's is later than that of every page that continues it.

Budgets are held to a recorded figure, usage.json, that may be too high and is
never too low: processes claim room in it before they write. So Open need not
count, and a million files are counted in the background. OpenRoot lets tools count
and collect the pages of all fingerprints below a root. Package inspect checks and
repairs them, and exports a conversation as one archive, which it also imports.

With Options.RAM a store also keeps decoded pages in memory, as copies of what a
tier holds: those put or read last. Lookups go from memory to the local tier to
the remote one. Processes of one server divide its budget.

Reads of one page at the same time share one: it is read, checked and decoded once,
and copied for the others. ReadAhead reads the pages used last into memory, after a
start, for whoever comes back.

# Guarantees

  - After Put returned nil the page survives a power cut. A page that can be seen
    is whole, whenever the process was killed or the power failed.
  - A page that moves down leaves the local tier only when the remote one has a
    durable copy, every byte of which was just written or read.
  - Read returns exactly the bytes that were put, for exactly the tokens asked
    for. Every byte of a file is checked; any flipped bit and any truncation is
    found. One that looks damaged is read once more past this machine's cache
    before anything is concluded; one that is goes to quarantine and is never
    read again. Reading deletes nothing. One process sets aside at most 16 files
    an hour of the local tier and 4 of the remote one, there only one for each 8
    found good after the first; other files stay in their place and count as not
    stored in that process for an hour. The next Put replaces those of the local
    tier; a copy in the remote tier is not written over.
  - No failure of a tier is more than a page that must be computed again. Chain
    has no error; with a remote tier that hangs it takes at most
    Options.RemoteTimeout longer, and after a few times no longer at all.
  - Memory is bounded by the caller's layout and the file's length, whatever a
    file claims: reading a page takes at most its size twice, the caller's buffer
    included, and the header of a file in its place at most twice that file.
    (Pages kept by Options.RAM have a budget of their own.)
  - Goroutines are bounded, even while a mount hangs; when nothing is to be done
    there are none. Close takes at most 5 s.
  - A page whose file was deleted is served from memory for at most 10 s longer,
    and stays there for little more than a minute.
  - Memory for decoded pages never exceeds its budget, bookkeeping included, but
    for 2 s after one more process of the same server begins to take its part,
    and for pages that are copied from while the budget shrinks.
  - A budget is never exceeded by the disk space files occupy: pages, tails,
    temporary and quarantined files, of all fingerprints below the root and all
    processes that open it with that budget, whenever they were killed or the
    power failed. Put waits at most 5 s for room. Eviction never takes the pages
    that the new one continues; when there is nothing else, Put fails.
  - No more than Options.WritePerDay is written to the local tier in a UTC day,
    over all processes that open it with that limit.
  - Open takes as long with a million pages as with none.
  - Directories have mode 0700 and files 0600. A root that is a symbolic link,
    belongs to somebody else, or is writable by others is refused, at Open and
    as long as the store is open. Links, FIFOs
    and devices in a page's place are not followed, opened or waited for, nor are
    links in the place of a directory below a root.

# Caveats

  - Pages hold prompts in another form. They are not encrypted.
  - Checks find accidents, not forgeries: who can write below a root can write a
    page with good checksums. That is why a root must be its owner's alone.
  - The remote tier must be a filesystem with atomic rename. Where its flock may
    not reach other machines (by the type and the options of its mount, see
    vfs.Locking) one machine at a time writes to it and collects it; others read,
    and get ErrNotShared. What a dead process left in the remote tier goes with
    the next process of the same running system. Otherwise, after a restart of
    the machine as well, its temporary files stay for an hour after it was last
    seen, and its lock file and the room it had claimed for a day more, or on
    Linux only for 5 minutes where the same machine has restarted since. In a
    local tier on a disk all go with the next process, also after a restart.
  - Only the remote tier is isolated. A local disk that hangs, hangs Put, Chain
    and Read.
  - A budget counts what files occupy as the filesystem tells when it is asked.
    Not counted are directories, and manifests, locks and usage.json, a few KiB
    for each fingerprint. Filesystems that allocate blocks after a sync (ZFS)
    tell less for some seconds.
  - Without a budget the 5 % are looked at between two pages: several processes
    may go below by a page each.
  - Where there is no flock, processes may lose each other's claims, and exceed
    the budget by up to 256 MiB each until files are counted. A process that died
    keeps its claim for a day there.
  - Files that are deleted by hand count until the next count. While pages are
    written that is due after a minute, ten in the remote tier, or a hundred times
    as long as a count takes.
  - The order of eviction suffers, and nothing else, when file times are lost in
    a power cut or by copying, and when a clock is wrong: pages with a time more
    than a minute ahead, of this machine's clock and the filesystem's, count as used
    when a collection that needs room finds them.
  - What is deleted because of its age alone, by Reclaim and GC, is that old by this
    machine's clock and by the filesystem's. A file from the future is not, until a
    collection has found it and that time has passed again. What a host stores whose
    clock is behind is as old as its clock makes it.
  - A page that ReadPlaced gave out keeps its disk space, outside every budget,
    until its file is closed, even after it was evicted. What is read from it
    then is not checked again. Windows does not let an open file be removed.
  - Up to 16 quarantined files per tier are kept while there is space; with as
    many, reading sets no more aside. A directory in a page's place is moved there
    all the same, with what is in it, and deleted by nobody while it is not empty.
  - Hits are recorded every 5 s, and by Flush and Close; what a process that dies
    has not recorded is lost.
  - A page that cannot be demoted because the remote tier is down is deleted
    when its space is needed, and with it as many of the next as come to 1/64 of
    the budget.
*/
package diskstore
