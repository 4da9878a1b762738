package install

func chownDir(string, int, int) error { return nil }

const neverWait = 0
