package diskstore

const crashRootEnv = "KVTIER_CRASH_ROOT"

func crashChild(root string) {}
