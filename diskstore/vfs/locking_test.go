package vfs

import (
	"io/fs"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReachOfMounts(t *testing.T) {
	for _, c := range []struct {
		fsType, options string
		want            Reach
	}{
		{"ext4", "rw,relatime", ReachDisk},
		{"overlay", "rw,lowerdir=/a,upperdir=/b", ReachDisk},
		{"nfs4", "rw,vers=4.2,local_lock=none,soft", ReachAll},
		{"nfs", "rw,vers=3,local_lock=none,mountproto=tcp", ReachAll},
		{"nfs", "rw,vers=3,nolock,local_lock=all", ReachHost},
		{"nfs4", "rw,local_lock=flock", ReachHost},
		{"nfs", "rw,local_lock=posix", ReachAll}, // flock is not a POSIX lock
		{"lustre", "rw,flock", ReachAll},
		{"lustre", "rw,localflock", ReachHost},
		{"cifs", "rw,vers=3.1.1", ReachHost},
		{"smb3", "rw", ReachHost},
		{"9p", "rw,trans=virtio", ReachHost},
		{"virtiofs", "rw", ReachHost},
		{"fuse.sshfs", "rw,user_id=0", ReachHost},
		{"fuse", "rw", ReachHost},
		{"something-new", "rw", ReachHost},
	} {
		got, why := reachOf(c.fsType, strings.Split(c.options, ","))
		require.Equal(t, c.want, got, "%s %s", c.fsType, c.options)
		require.Contains(t, why, c.fsType)
	}
}

func TestMountOf(t *testing.T) {
	const info = `22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:35 / /mnt/kv rw,nosuid shared:20 - nfs4 server:/export rw,vers=4.2,local_lock=none
41 22 0:36 / /mnt/kv rw shared:21 - nfs server:/other rw,vers=3,nolock,local_lock=all
42 22 0:37 / /mnt/a\040b\134c rw - fuse.sshfs host: rw,user_id=0
43 22 0:38 / /mnt/kvother rw master:1 propagate_from:2 - cifs //s/x rw
a line that is none
`
	for path, want := range map[string]string{
		"/": "ext4", "/home/me": "ext4", "/mnt/kv": "nfs", "/mnt/kv/pages/v1": "nfs", "/mnt/a b\\c/x": "fuse.sshfs",
		"/mnt/kvother/x": "cifs", "/mnt/kvo": "ext4",
	} {
		m, ok := mountOf(info, path)
		require.True(t, ok)
		require.Equal(t, want, m.fsType, path)
	}
	m, _ := mountOf(info, "/mnt/kv/x")
	reach, why := reachOf(m.fsType, m.options)
	require.Equal(t, ReachHost, reach)
	require.Equal(t, "nfs with nolock", why)
	_, ok := mountOf("", "/x")
	require.False(t, ok)
}

func TestLockingOfThisSystem(t *testing.T) {
	l, err := OS.Locking(t.TempDir())
	require.NoError(t, err)
	require.Len(t, l.Host, 8)
	again, err := Below(t.TempDir()).Locking(t.TempDir())
	require.NoError(t, err)
	require.Equal(t, l.Host, again.Host)
	require.Equal(t, l.Machine, again.Machine)
	require.LessOrEqual(t, l.Up, again.Up)

	if runtime.GOOS != "linux" {
		return
	}
	elsewhere, err := OS.Locking("/proc")
	require.NoError(t, err)
	require.NotEqual(t, l.Host, elsewhere.Host, "another mount, whose locks are its own")
	gone, err := OS.Locking("/proc/not there")
	require.Error(t, err)
	require.NotEqual(t, l.Host, gone.Host)
}

func TestMachineName(t *testing.T) {
	const id = "0123456789abcdef0123456789abcdef"
	name := machineName(id+"\n", "gpu0")
	require.Len(t, name, 8)
	require.Equal(t, name, machineName(id, "gpu0"))
	require.NotEqual(t, name, machineName(id, "gpu1"), "copies of one image")
	require.NotEqual(t, name, machineName("1"+id[1:], "gpu0"))
	for _, c := range [][2]string{{"", "gpu0"}, {"uninitialized", "gpu0"}, {id[1:], "gpu0"}, {id, ""}, {id, "localhost"}} {
		require.Empty(t, machineName(c[0], c[1]))
	}
}

// TestHeld: a lock is seen while it is held, and looking takes nothing.
func TestHeld(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	_, err := Held(path)
	require.ErrorIs(t, err, fs.ErrNotExist)
	for range 2 {
		lock, err := OS.Lock(path)
		require.NoError(t, err)
		held, err := Held(path)
		require.NoError(t, err)
		require.True(t, held)
		require.NoError(t, lock.Close())
		held, err = Held(path)
		require.NoError(t, err)
		require.False(t, held)
	}
	_, err = Held(filepath.Dir(path))
	require.ErrorIs(t, err, ErrNotRegular)
}
