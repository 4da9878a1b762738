package vfs

// Below returns OS: Windows gives the right to make links to administrators, and
// has no call that refuses them on the way.
func Below(string) FS { return OS }
