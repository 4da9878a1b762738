package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/kvtier/kvtier/diskstore/tier"
)

// mountChecks look at the options of network filesystems.
var mountChecks = []Check{
	{
		ID: "nfs-local-locks", Severity: Warning, Title: "Locks of an NFS mount stay on this machine",
		Matters: "Only one machine at a time writes to the directory.",
		Means:   "`nolock` and `local_lock=all` or `flock` keep locks from the NFS server, so that two machines could collect at once. kvtier then lets one write, and others read.",
		Remedy:  "sudoedit /etc/fstab && sudo umount {point} && sudo mount {point}  # without nolock and local_lock", judge: judgeLocalLocks,
	},
	{
		ID: "one-writer", Severity: Note, Title: "Locks of this filesystem may not reach other machines",
		Matters: "Only one machine at a time writes to the remote directory.",
		Means:   "SMB, 9P, virtiofs and FUSE do not tell whether locks go to the server. One machine that uses the directory alone loses nothing.",
		Remedy:  "findmnt --target {path}  # NFS 4 has locks for all machines: docs/operations.md#nfs", judge: judgeOneWriter,
	},
	{
		ID: "nfs-nocto", Severity: Warning, Title: "An NFS mount has nocto",
		Matters: "A page that another machine replaced or removed is seen late.",
		Means:   "`nocto` turns off the look at the server that each opening of a file makes. Every page is checked when it is read, so output stays right, and reads fail more often.",
		Remedy:  "sudoedit /etc/fstab && sudo umount {point} && sudo mount {point}  # without nocto", judge: optionCheck("nocto"),
	},
	{
		ID: "nfs-hard", Severity: Note, Title: "An NFS mount waits for ever",
		Matters: "Threads that hang stay until the NFS server is back.",
		Means:   "`hard` is the default of NFS and works. With `soft,timeo=50,retrans=2` an operation on a dead server ends with an error, which the store treats as a miss.",
		Remedy:  "sudoedit /etc/fstab && sudo umount {point} && sudo mount {point}  # with soft,timeo=50,retrans=2", judge: optionCheck("hard"),
	},
	{
		ID: "nfs-noac", Severity: Warning, Title: "An NFS mount has noac or sync",
		Matters: "Each write waits for the server, so storing is slow.",
		Means:   "The store syncs each page by itself. As options of a mount, `noac` and `sync` make every write of every program synchronous.",
		Remedy:  "sudoedit /etc/fstab && sudo umount {point} && sudo mount {point}  # without noac and sync", judge: optionCheck("noac", "sync"),
	},
	{
		ID: "nfs-lookupcache", Severity: Note, Title: "An NFS mount remembers files that are not there",
		Matters: "A page that another machine stored is found up to a minute late.",
		Means:   "With `lookupcache=all`, the default, a client remembers that a name was not there. `lookupcache=positive` asks again.",
		Remedy:  "sudoedit /etc/fstab && sudo umount {point} && sudo mount {point}  # with lookupcache=positive", judge: judgeLookupCache,
	},
	{
		ID: "root-squash", Severity: Error, Title: "The NFS server gives root the rights of a stranger",
		Matters: "A server that runs as root can neither read nor write pages there.",
		Means:   "`root_squash`, the default of NFS exports, turns root into nobody. A service with a user of its own does not need root's rights.",
		Remedy:  "sudo mkdir -p {dir} && printf '[Service]\\nUser=ollama\\n' | sudo tee {dir}/user.conf && sudo systemctl daemon-reload && sudo systemctl restart {server}  # or no_root_squash in /etc/exports of the NFS server", judge: judgeSquash,
	},
	{
		ID: "clock-skew", Severity: Warning, Title: "This machine and the server of a directory have different clocks",
		Matters: "Pages are deleted in a wrong order, and ages of `kvtier gc` are wrong.",
		Means:   "Times of files come from the server of a share, and are compared with those of other machines. Clocks may differ by a minute.",
		Remedy:  "timedatectl; sudo timedatectl set-ntp true  # on both machines", judge: judgeClock,
	},
}

// eachNFS calls fn for each directory on NFS, as its server's mounts have it.
func (s *scene) eachNFS(fn func(st store, p *place, m mount)) {
	s.eachPlace(func(st store, p *place) {
		if m, ok := mountOf(s.mountsOf(st), p.path); ok && m.nfs() {
			fn(st, p, m)
		}
	})
}

// optionCheck finds NFS mounts with one of some options.
func optionCheck(options ...string) func(*scene) []hit {
	return func(s *scene) (hits []hit) {
		s.eachNFS(func(st store, p *place, m mount) {
			if o := m.first(options...); o != "" {
				hits = append(hits, hit{says: fmt.Sprintf("%s is mounted with %s.", upperFirst(p.title()), o), evidence: []Evidence{m.evidence(o)}, values: s.values(st, p)})
			}
		})
		return hits
	}
}

func judgeLocalLocks(s *scene) []hit {
	return optionCheck("nolock", "local_lock=all", "local_lock=flock")(s)
}

// shared are the types of filesystems whose locks reach every machine; alone are those of disks.
var (
	shared = []string{"nfs", "nfs4", "ceph", "gfs2", "lustre", "ocfs2"}
	alone  = []string{"apfs", "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "fuseblk", "hfs", "jfs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}
)

func judgeOneWriter(s *scene) (hits []hit) {
	s.eachPlace(func(st store, p *place) {
		m, ok := mountOf(s.mountsOf(st), p.path)
		if p.tier != remoteTier || !ok || slices.Contains(shared, m.fsType) || slices.Contains(alone, m.fsType) {
			return
		}
		hits = append(hits, hit{says: fmt.Sprintf("%s is on %s, whose locks may not reach other machines.", upperFirst(p.title()), m.fsType), evidence: []Evidence{{"mount " + m.point, m.fsType + " " + m.source}}, values: s.values(st, p)})
	})
	return hits
}

func judgeLookupCache(s *scene) (hits []hit) {
	s.eachNFS(func(st store, p *place, m mount) {
		if m.first("lookupcache=pos", "lookupcache=positive", "lookupcache=none", "noac") == "" {
			hits = append(hits, hit{says: fmt.Sprintf("%s is mounted without lookupcache=positive.", upperFirst(p.title())), evidence: []Evidence{m.evidence("lookupcache=all")}, values: s.values(st, p)})
		}
	})
	return hits
}

// nobody is the user that NFS servers turn root into.
const nobody = 65534

// squashed reports whether an NFS server gives this root the rights of a stranger: new files
// and directories belong to nobody, or writing is refused although root may write everywhere.
func (s *scene) squashed(st store, p *place) bool {
	m, _ := mountOf(s.mountsOf(st), p.path)
	if !m.nfs() || s.serverUID(st) != 0 || p.missing {
		return false
	}
	refused := s.user.UID == 0 && (p.denied || p.probed && errors.Is(p.probeErr, fs.ErrPermission))
	return p.file.UID == nobody || refused
}

func judgeSquash(s *scene) (hits []hit) {
	s.eachPlace(func(st store, p *place) {
		if s.squashed(st, p) {
			hits = append(hits, s.placeHit(st, p, "owner of "+p.path, fmt.Sprint(p.file.UID), "The server runs as root, and %s gives root the rights of a stranger.", p.title()))
		}
	})
	return hits
}

func judgeClock(s *scene) (hits []hit) {
	s.eachPlace(func(st store, p *place) {
		if !p.probed || p.probeErr != nil {
			return
		}
		var skew time.Duration
		switch {
		case p.probe.Modified.Before(p.probe.Before.Add(-tier.ClockSlack)):
			skew = p.probe.Modified.Sub(p.probe.Before)
		case p.probe.Modified.After(p.probe.After.Add(tier.ClockSlack)):
			skew = p.probe.Modified.Sub(p.probe.After)
		default:
			return
		}
		word := "ahead of"
		if skew < 0 {
			word = "behind"
		}
		hits = append(hits, s.placeHit(st, p, "clock of "+p.path, p.probe.Modified.UTC().Format(time.RFC3339), "The clock of %s is %v %s that of this machine.", p.title(), skew.Abs().Round(time.Second), word))
	})
	return hits
}
