package vfs

// Below returns OS: on Windows only administrators may make links, and no call refuses links
// within a path.
func Below(string) FS { return OS }
