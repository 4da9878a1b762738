package tierenv

import "golang.org/x/sys/unix"

// networks are the filesystems that another machine serves. FUSE and 9P are not among them:
// their files may be on this machine or on its host.
var networks = map[uint32]bool{
	unix.NFS_SUPER_MAGIC: true, unix.SMB_SUPER_MAGIC: true, unix.SMB2_SUPER_MAGIC: true, unix.CIFS_SUPER_MAGIC: true,
	unix.AFS_SUPER_MAGIC: true, unix.AFS_FS_MAGIC: true, unix.CODA_SUPER_MAGIC: true, unix.NCP_SUPER_MAGIC: true,
	unix.CEPH_SUPER_MAGIC: true,
	0x0BD00BD0:            true, // Lustre
	0x47504653:            true, // GPFS
	0x19830326:            true, // BeeGFS
}

func isNetwork(path string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return false, err
	}
	// the field's type differs between architectures; the magic fits in 32 bits
	return networks[uint32(st.Type)], nil
}
