// node -r ./on_loopback.cjs SERVER: whatever address SERVER asks for, it listens on 127.0.0.1.
const { Server } = require("net");
const listen = Server.prototype.listen;
Server.prototype.listen = function (first, ...rest) {
  const port = typeof first === "object" && first !== null ? first.port : Number(first);
  const ready = rest.find((one) => typeof one === "function");
  return listen.call(this, { port, host: "127.0.0.1" }, ready);
};
