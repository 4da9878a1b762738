package collect

func stranger(string) {}
