// Package identity names everything that decides the bytes of rows besides tokens: the weights and
// adapters, the program and its libraries, the devices, the arguments. Pages of one identity are
// never restored under another one. [ReadModel] reads the model's part from its file.
package identity
